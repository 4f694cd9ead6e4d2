"""The leak check of the tests in this folder."""

from leak_check import marked, pytest_runtest_setup, pytest_runtest_teardown

__all__ = ["marked", "pytest_runtest_setup", "pytest_runtest_teardown"]
