"""`orch proxy stats`: what conversations cost with and without the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import orch.gateway
from orch.cli import run
from orch_worker.backends.models import load
from orchestrator.gateway.billed_client import BilledClient, prepared
from orchestrator.gateway.gateway_world import ChatClient, MessagesClient, Worker, World

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without a proxy."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def world(home: Path) -> Callable[..., World]:
    """A gateway over the folder of the proxy."""
    return lambda *args, **options: World(home / "gateway" / "conversations", *args, **options)


def test_stats_work_without_a_proxy_and_without_requests(home: Path, capsys: Captured) -> None:
    """Before the first request, the text says so, and JSON has the same form as later."""
    assert run(["proxy", "stats"]) == 0
    assert "no requests yet" in capsys.readouterr().out
    assert run(["proxy", "stats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conversations"] == []
    assert found["total"]["requests"] == 0
    assert not (home / "gateway").exists()


def test_stats_show_the_last_conversations_and_the_total(
    home: Path, world: Callable[..., World], capsys: Captured
) -> None:
    """A row has at most 100 columns. `--last` selects the number. The text says where an unknown price is added."""
    billed = BilledClient(world, prepared(MessagesClient()), Worker(5))
    billed.turns(12)
    expected = billed.direct_usd()
    other = world(clock=lambda: billed.now)
    for number in range(12):
        billed.now += 60
        client = ChatClient(f"session {number}", model="a-model-with-a-long-name-and-no-price\x1b[31m")
        client.say("Hello.")
        other.send(client, stream=False)
    assert run(["proxy", "stats"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.split("\n\n")[0].splitlines())) <= 100
    assert "\x1b" not in out
    header, *rows = out.split("\n\n")[0].splitlines()
    assert header.split()[:3] == ["LAST", "MODEL", "REQS"]
    assert len(rows) == 11
    assert rows[-1].startswith("total")
    assert "12 requests to models whose price is unknown" in out
    assert f"to {home / 'models.json'}:" in out
    (home / "models.json").write_text(next(line for line in out.splitlines() if line.startswith("{")))
    name = json.loads((home / "models.json").read_text())["models"]["openai"].popitem()[0]
    assert load(home).find_priced(name) is not None
    assert run(["proxy", "stats", "--last", "20"]) == 0
    mine = next(line for line in capsys.readouterr().out.splitlines() if "claude-sonnet-5-5" in line).split()
    cost, without = (float(each.removeprefix("$")) for each in mine[5:7])
    assert without == pytest.approx(expected, rel=0.1)
    assert 0 < cost < without
    assert run(["proxy", "stats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"]["requests"] == len(billed.direct) + 12
    assert len(found["conversations"]) == 13
    assert orch.gateway.stats(home / "gateway" / "conversations").total.requests == found["total"]["requests"]
