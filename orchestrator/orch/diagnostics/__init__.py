"""Checks of the machine that orch runs on."""
