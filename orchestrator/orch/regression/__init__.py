"""Generate regression tests from recorded sessions, and replay these tests."""
