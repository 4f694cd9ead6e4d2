"""Random conversations through the proxy before a strict server: `python tests/chaos/proxy_lives.py 126 [--kill]`.

The number is that of lives; each has four clients with a conversation, and edits, rewinds, forks and restarts. With
--kill, the proxy is a process that is killed between and within requests. Lives that fail are listed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from traceback import format_exc
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

from integration.proxy_process import KilledWorld  # noqa: E402
from orchestrator.gateway.gateway_world import CLIENTS, TIGHT  # noqa: E402
from orchestrator.gateway.test_random_conversations import config_of, live, worker_of  # noqa: E402
from wire.proxy_world import ProxyWorld  # noqa: E402

KILLS = 0.2


def main() -> None:
    """Run the lives and print their sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lives", type=int)
    parser.add_argument("--first", type=int, default=0, help="seed of the first life")
    parser.add_argument("--actions", type=int, default=24, help="prompts in each life")
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    began = time.monotonic()
    failed: list[str] = []
    sums = dict.fromkeys(("conversations", "requests", "refused", "folds", "recalls", "killed"), 0)
    for number in range(given.lives):
        seed, kind = given.first + number // len(CLIENTS), [*CLIENTS][number % len(CLIENTS)]
        try:
            counts = life(kind, seed, given.actions, kill=given.kill)
        except AssertionError as error:
            failed.append(f"{kind} {seed}: {error!s:.400}\n{format_exc()}")
            print(failed[-1], flush=True)
            continue
        for name, count in counts.items():
            sums[name] += count
        if number % 10 == 9:
            print(number + 1, sums, f"{time.monotonic() - began:.0f} s", flush=True)
    print(sums, f"{time.monotonic() - began:.0f} s, {len(failed)} lives failed")
    sys.exit(bool(failed))


def life(kind: str, seed: int, actions: int, *, kill: bool) -> dict[str, int]:
    """Run one life and return its counts."""
    worker = worker_of(seed)
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"ORCH_HOME": f"{folder}/home", "HOME": folder}
        # The process has the narrow limits. Long turns would need the wider ones.
        config: Any = TIGHT if kill else config_of(seed)
        world = (
            KilledWorld(Path(folder), worker, env, KILLS)
            if kill
            else ProxyWorld(Path(folder) / "conversations", worker, config=config)
        )
        with world:
            watch = live(world, kind, seed, actions)
            refused = world.apart.server.refused
            assert refused == [], (kind, seed, refused)
            return {
                "conversations": 4,
                "requests": len(world.sent),
                "refused": len(refused),
                "folds": watch.folds,
                "recalls": worker.recalled,
                "killed": getattr(world, "killed", 0),
            }


if __name__ == "__main__":
    main()
