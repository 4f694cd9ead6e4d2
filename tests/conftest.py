"""What holds for all tests: none has a key, whoever runs them. What they are made of is not looked through again."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

SECRETS = ("_API_KEY", "_AUTH_TOKEN", "_CUSTOM_HEADERS")
"""Ends of the names of variables that hold keys of providers."""


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.endswith(SECRETS):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set HOME to an empty folder: results must not depend on the credentials and settings in the developer's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[object]:
    """Keep what is collected out of the collector's sight: it is hundreds of megabytes, and stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
