"""Recording of sessions, and replaying them as regression tests."""
