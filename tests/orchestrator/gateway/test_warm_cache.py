"""The server's prompt cache stays warm: between folds, the server reads anew only what the client has added."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from orch import ArchivalConfig
from orchestrator.gateway.billed_client import BilledClient, Worlds, prepared
from orchestrator.gateway.gateway_world import CLIENTS, Worker, archives_in
from wire.billing_server import STEP, Charge

CONFIG = ArchivalConfig(profile="balanced", high_tokens=6000, low_tokens=3000, rollup_tokens=1500)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("seed", [1])
def test_requests_between_folds_cost_what_the_client_added(kind: str, seed: int, world: Worlds) -> None:
    """Unless turns were archived, the server reads from its cache what the request before has written to it.

    Recalls, restarts of the gateway and edits of the conversation do not change this. A request has at most as many
    uncached tokens as the client's request would have, if the exchange before it has no results of recalls.
    """
    chance = random.Random(seed)
    client = prepared(CLIENTS[kind]())
    worker = Worker(seed, recalls=0.2, steps=4, thinks=0)
    billed = BilledClient(world, client, worker, config=CONFIG)
    archives: set[str] = set()
    folds = warm = as_direct = 0
    recalled, is_edited = -1, False
    for turn in range(25):
        action = chance.random()
        prompts = [index for index, item in enumerate(client.items) if isinstance(item.get("content"), str)]
        prompts = [index for index in prompts if client.items[index]["role"] == "user"]
        if action < 0.15:
            billed.world.restart()
        elif action < 0.25 and len(prompts) > 6:
            del client.items[prompts[-2] :]
            is_edited = True
        client.say(f"Prompt {turn}. " + "Look at this part. " * 60)
        called = ["yes"]
        while called:
            before, had_recall = len(billed.charges), worker.recalled != recalled
            recalled = worker.recalled
            called = billed.send()
            now = archives_in(json.loads(billed.world.sent[before]))
            charges = billed.charges[before:]
            if now != archives or not now:
                folds, archives, is_edited = folds + 1, now, False
                continue
            if not is_edited:
                for last, charge in pairwise(billed.charges[before - 1 :]):
                    assert charge.read >= size(last) - (0 if last.read % STEP else STEP) - last.fresh
                    warm += 1
            if kind == "messages":
                # What a recall has added is cached for the requests after it.
                assert sum(charge.fresh for charge in charges[1:]) == 0
            if not had_recall:
                assert uncached(charges[0]) <= uncached(billed.direct[-1]) + STEP
                as_direct += 1
            is_edited = False
    assert folds > 5
    assert warm > folds
    assert as_direct > 10
    assert worker.recalled > 5


def size(charge: Charge) -> int:
    """Return the number of tokens of a request."""
    return charge.read + charge.written + charge.fresh


def uncached(charge: Charge) -> int:
    """Return the number of tokens that the server does not read from its cache."""
    return charge.written + charge.fresh
