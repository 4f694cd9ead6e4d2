"""Fixtures of all tests. No test has a key, and the collected test items are excluded from garbage collection."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

SECRETS = ("_API_KEY", "_AUTH_TOKEN", "_CUSTOM_HEADERS")
"""The ends of the names of variables that contain keys of providers."""

# A busy machine is not a failure: time limits of Hypothesis measure wall-clock time.
settings.register_profile("orch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("orch")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.endswith(SECRETS):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set HOME to an empty folder, so that results do not depend on the developer's credentials and settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[object]:
    """Exclude the collected items from garbage collection, because they use hundreds of megabytes until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
