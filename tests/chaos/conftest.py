"""Each of these tests is followed by a census, too."""

from leak_check import marked, pytest_runtest_setup, pytest_runtest_teardown

__all__ = ["marked", "pytest_runtest_setup", "pytest_runtest_teardown"]
