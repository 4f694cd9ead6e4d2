"""Fixtures for the gateway's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orch.gateway.core import Gateway
from orchestrator.gateway.gateway_world import CLIENTS, Client, World


@pytest.fixture(autouse=True)
def closed_gateways(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close all gateways after each test: prompt_toolkit cannot use descriptors above 1023."""
    opened: list[Gateway] = []
    create = Gateway.__init__

    def create_recorded(gateway: Gateway, *args: Any, **options: Any) -> None:
        create(gateway, *args, **options)
        opened.append(gateway)

    monkeypatch.setattr(Gateway, "__init__", create_recorded)
    yield
    for gateway in opened:
        gateway.close()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    """A client of each API. A test with this fixture runs once for each API."""
    return CLIENTS[request.param]()


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """A function that returns a gateway with a model."""
    return lambda *args, **options: World(tmp_path, *args, **options)
