"""Conversations in any context window: no query fails unless its own prompt does not fit."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from narrow_model import REFUSALS, REPORTS, NarrowModel, words
from orch import ArchivalConfig, AsyncOrchestrator, Config
from orch.testing import fake_world
from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.errors import ContextOverflowError
from orch_worker.session.log.append_log import AppendLog

EXAMPLES: Final = int(os.environ.get("ORCH_WINDOW_EXAMPLES", "4"))
"""The number of random conversations. Each takes about 0.2 s of CPU time; set the variable to try more of them."""
MODEL: Final = "claude-sonnet-4-5"
PROFILES: Final = {
    "off": ArchivalConfig(),
    "eager": ArchivalConfig(
        enabled=True, profile="seed", trigger=TriggerConfig(token_threshold=0, tool_call_threshold=0)
    ),
    "economy": ArchivalConfig(enabled=True, profile="economy"),
    "balanced": ArchivalConfig(enabled=True, profile="balanced"),
    "roomy": ArchivalConfig(enabled=True, profile="roomy"),
}
FILES: Final = 6
MOST_CHARS: Final = 200_000


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AppendLog, "_fdatasync", staticmethod(lambda _: None))


@settings(max_examples=EXAMPLES, phases=(Phase.explicit, Phase.generate))
@given(
    seed=st.integers(0, 1_000_000),
    window=st.sampled_from([4_000, 8_000, 16_000, 32_000, 200_000, 1_000_000]),
    known=st.booleans(),
    ratio=st.sampled_from([2.5, 3.0, 4.0, 5.0]),
    report=st.sampled_from([*REPORTS]),
    refusal=st.sampled_from([*REFUSALS]),
    profile=st.sampled_from([*PROFILES]),
    part=st.sampled_from([0.05, 0.25, 1.0, 2.0]),
    turns=st.integers(1, 6),
)
@example(
    seed=1,
    window=8_000,
    known=True,
    ratio=4.0,
    report="tiny",
    refusal="both",
    profile="balanced",
    part=0.25,
    turns=8,
)
def test_no_query_fails_unless_its_own_prompt_does_not_fit(
    seed: int,
    window: int,
    known: bool,
    ratio: float,
    report: str,
    refusal: Any,
    profile: str,
    part: float,
    turns: int,
) -> None:
    """A prompt of half of the free window is always answered, and the error of a longer prompt comes before a request.

    Files have `part` of the window, and the reports of the server may be wrong. If the window is not `known`, orch
    assumes that of the catalog.
    """
    random = Random(seed)
    left, fixed = [0], [0]

    def think(body: dict[str, Any]) -> str | list[tuple[str, dict[str, Any]]]:
        if not body.get("tools"):
            return "Notes: " + words(random, 300)
        fixed[0] = len(json.dumps(body["system"])) + len(json.dumps(body["tools"]))
        if left[0] > 0:
            left[0] -= 1
            return [("read_file", {"path": f"f{random.randrange(FILES)}.txt"}) for _ in range(random.choice([1, 1, 3]))]
        return "Done: " + words(random, random.choice([50, 500, 2_000]))

    server = NarrowModel(window, ratio, report, refusal, think, [], [])

    async def live(query: Callable[[str], Any]) -> None:
        await query("Hello")
        for _ in range(turns):
            left[0] = random.choice([0, 1, 2, 4])
            free = window * ratio - fixed[0]
            await query(words(random, int(min(free * random.choice([0.01, 0.1, 0.3, 0.5]), MOST_CHARS))))
        if known and window <= 32_000:
            with pytest.raises(ContextOverflowError, match="the prompt does not fit"):
                await query(words(random, int(window * ratio * 3)))
            assert max(server.sizes + server.refused) < 2.9 * window, "the prompt was sent"
            await query("And now?")

    with TemporaryDirectory() as folder, patch("orch_worker.backends.clients.anthropic._client", server.client):
        size = int(min(window * ratio * part, MOST_CHARS))
        asyncio.run(_run(Path(folder), size, random, window if known else 0, PROFILES[profile], live))


async def _run(
    folder: Path, size: int, random: Random, window: int, archival: ArchivalConfig, live: Callable[..., Any]
) -> None:
    """Call `live` with the function that queries an agent. The agent's folder has files of `size` characters."""
    for number in range(FILES):
        lines = (words(random, 80) for _ in range(size // 80 + 1))
        (folder / f"f{number}.txt").write_text("\n".join(lines))
    home = folder / "home"
    home.mkdir(mode=0o700)
    if window:
        (home / "models.json").write_text(json.dumps({"models": {"anthropic": {MODEL: {"context": window}}}}))
        (home / "models.json").chmod(0o600)
    async with AsyncOrchestrator(
        f"anthropic:{MODEL}",
        home=home,
        env={"ANTHROPIC_API_KEY": "k"},
        config=Config(archival=archival),
        **fake_world(),
    ) as o:
        agent = await o.spawn("long work", cwd=folder, preset="minimal")
        await live(agent.query)
