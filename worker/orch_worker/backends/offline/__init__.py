"""Backends without a model: scripted answers, and quotations from files."""
