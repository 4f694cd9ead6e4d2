"""What holds for all tests: none has a key, whoever runs them."""

from __future__ import annotations

import os

import pytest

from orch.arguments import SECRETS


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.endswith(SECRETS):
            monkeypatch.delenv(name)
