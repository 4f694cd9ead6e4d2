"""Data types that orch processes exchange. Imports only msgspec and the standard library."""
