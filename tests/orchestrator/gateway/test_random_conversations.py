"""Random conversations of several clients: the server accepts each request, and its cache stays warm."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from orch_protocol.agent.config import ArchivalConfig
from orchestrator.gateway.gateway_world import CLIENTS, TIGHT, Client, Worker, World, archives_in, without_markers

RULE = re.compile(rb"Rule \d+ of the client")
ROOMIER = replace(TIGHT, high_tokens=4000, low_tokens=1200)


class Watch:
    """Compares each request to the server with the one before it of the same client."""

    def __init__(self) -> None:
        self.compared = self.folds = 0
        self._last: dict[int, tuple[list[Any], list[Any], Any]] = {}

    def check(self, client: Client, seen: list[Any], world: World) -> None:
        """Check the prefix that the requests share. `seen` is what the client had sent."""
        body = without_markers(json.loads(world.sent[-1]))
        sent, rest = body.pop(client.field), body
        before = self._last.get(id(client))
        self._last[id(client)] = (seen, sent, rest)
        if before is None:
            return
        if archives_in(before[1]) != archives_in(sent):
            self.folds += 1
            return
        shared = common(before[0], seen)
        # The server got some of the shared items as they are. Up to the last of them, nothing may differ.
        as_sent = [json.dumps(item, sort_keys=True) for item in before[1]]
        kept = {json.dumps(item, sort_keys=True) for item in seen[:shared]}
        places = [index for index, item in enumerate(as_sent) if item in kept]
        warm = places[-1] + 1 if places else 0
        assert common(before[1], sent) >= warm
        assert before[2] == rest
        self.compared += 1
        if shared == len(before[0]):
            assert sent[: len(before[1])] == before[1]


def common(first: list[Any], second: list[Any]) -> int:
    """Return the number of equal items at the beginning of both lists."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("seed", range(2))
def test_random_lives(kind: str, seed: int, tmp_path: Path) -> None:
    """Conversations grow, are edited, rewound, forked and compacted, and a process is restarted.

    The server refuses no request, and gets the system messages of the conversation in their order. A request begins as
    the last one of its conversation unless turns were archived. No conversation contains results of another.
    """
    worker = worker_of(seed)
    watch = live(World(tmp_path, worker, config=config_of(seed)), kind, seed, 25 if seed else 50)
    assert watch.folds > 10
    assert watch.compared > watch.folds
    assert worker.recalled > 5
    assert worker.mixed


def worker_of(seed: int) -> Worker:
    """Return the model for `live`. With most seeds, turns are so long that they are archived in phases."""
    return Worker(seed, recalls=0.25, steps=12 if seed else 3, thinks=1.0 if seed else 0.5)


def config_of(seed: int) -> ArchivalConfig:
    """Return the limits for `live`."""
    return ROOMIER if seed else TIGHT


def live(world: World, kind: str, seed: int, actions: int) -> Watch:
    """Run random conversations with `actions` prompts and check all requests to the server."""
    chance, rules = random.Random(seed), random.Random(seed + 100)
    watch = Watch()
    # With thinking enabled, the server refuses turns whose first call has no thinking before it.
    fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if seed and kind == "messages" else {}
    clients = [CLIENTS[kind](session, **fields) for session in ("s1", "s1", "", "")]
    for name, client in zip(("alpha", "bravo", "charlie", "delta"), clients, strict=True):
        client.name = name
    for number in range(actions):
        client = chance.choice(clients)
        place = clients.index(client)
        action = chance.random()
        prompts = [index for index, item in enumerate(client.items) if is_prompt(item)]
        if action < 0.08 and len(prompts) > 3:
            del client.items[chance.choice(prompts[1:]) :]
        elif action < 0.12 and len(prompts) > 3:
            client.items[chance.choice(prompts)] = {"role": "user", "content": f"Another prompt {number}. " * 9}
        elif action < 0.15 and len(prompts) > 3:
            del client.items[1 : prompts[-1]]
            client.items[0] = {"role": "user", "content": f"[{place}] This is a summary of what was before. " * 9}
            del client.items[1:]
        elif action < 0.2:
            world.restart()
        if not client.items or not is_prompt(client.items[-1]):
            # Clients in one session, and clients without a session, begin with the same words.
            client.say(f"Prompt {client.prompts}. " + "Please look at this. " * 10)
            client.prompts += 1
            if rules.random() < 0.2:
                client.items.append({"role": "system", "content": f"Rule {number} of the client."})
        called = ["yes"]
        while called:
            client_body = client.body()
            seen = without_markers(json.loads(client_body)[client.field])
            sent = len(world.sent)
            called = world.send(client)
            for index in range(sent, len(world.sent)):
                check_own(client, clients, json.loads(world.sent[index]))
                assert rules_in(world.sent[index]) == rules_in(client_body)
            watch.check(client, seen, world)
    assert world.warnings == []
    return watch


def rules_in(body: bytes) -> list[bytes]:
    """Return the rules that a client has sent in system messages, in their order."""
    return RULE.findall(body)


def is_prompt(item: Any) -> bool:
    """Return whether `item` is a prompt of a user."""
    return item.get("role") == "user" and isinstance(item.get("content"), str)


def check_own(client: Client, clients: list[Client], body: Any) -> None:
    """Check that a request contains no result that only another client has got."""
    text = json.dumps(body)
    for other in clients:
        if other is not client:
            assert other.name not in text
