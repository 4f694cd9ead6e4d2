"""The hook `output_sandbox`: truncation of long results, and access to the rest by a handle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hook_events import call, returned
from orch_protocol.core.messages import ToolUse
from orch_protocol.core.taint import TaintLabel
from orch_protocol.hooks.options import HookOptions, OutputSandbox
from orch_protocol.hooks.patches import ResultPatch
from orch_worker.hooks.loader import configured_hooks
from orch_worker.tools.api.base import ToolContext, ToolOutput, tool
from orch_worker.tools.dispatch.presets import load
from orch_worker.tools.dispatch.result_limits import text_in, with_text
from orch_worker.tools.dispatch.toolbox import Toolbox, refused_outcome

LONG = "".join(f"line {number}\n" for number in range(2_000))


def hook_text(text: str, options: OutputSandbox = OutputSandbox(), **fields: Any) -> Any:  # noqa: B008
    """Return the patch of the hook for a result with this text."""
    [hook] = configured_hooks(["output_sandbox"], HookOptions(output_sandbox=options))
    return call(hook, returned(text=text, **fields))


def test_long_results_are_truncated_and_others_unchanged() -> None:
    """Short results, calls that did not run, and tools that are not configured are unchanged."""
    assert hook_text(LONG) == ResultPatch(max_chars=6_000)
    assert hook_text(LONG, OutputSandbox(chars=1_000)) == ResultPatch(max_chars=1_000)
    assert hook_text("short") is None
    assert hook_text(LONG, ran=False) is None
    assert hook_text(LONG, OutputSandbox(tools=("bash",))) is None
    assert hook_text(LONG, OutputSandbox(tools=("bash",)), name="bash") is not None


@tool
def look() -> ToolOutput:
    """Look."""
    return ToolOutput(LONG)


async def shown(folder: Path, *names: str, limit: int) -> tuple[Toolbox, str]:
    """Return the toolbox of an agent, and the text of a long result that a hook limits to `limit` characters."""
    box = Toolbox([look, *load(names)], ToolContext(folder, folder=folder))
    use = ToolUse("c1", "look", {})
    outcome = refused_outcome(use, "")
    outcome = type(outcome)(with_text(outcome.result, LONG), max_chars=limit)
    (cut,) = box.limit_results([use], [outcome])
    return box, text_in(cut.result)


async def test_truncated_result_shows_head_tail_and_handle(tmp_path: Path) -> None:
    """The shown text has at most `limit` characters, and the handle gives access to the rest."""
    box, text = await shown(tmp_path, "read_handle", limit=1_000)
    assert len(text) <= 1_000
    assert text.startswith("line 0\n")
    assert text.endswith("line 1999\n")
    handle = re.search(r"\.h_\d+", text)
    assert handle is not None
    part = await box.dispatch(ToolUse("c2", "read_handle", {"handle": handle[0], "search": "line 1000"}))
    assert "line 1000" in text_in(part.result)


async def test_agent_without_read_handle_sees_the_whole_result(tmp_path: Path) -> None:
    """A result is not truncated if the agent cannot read the rest later."""
    _, text = await shown(tmp_path, limit=1_000)
    assert text == LONG


async def test_labeled_results_of_one_step_each_keep_some_text(tmp_path: Path) -> None:
    """Each of 600 untrusted results in one step shows more than 100 characters."""
    box = Toolbox([look], ToolContext(tmp_path, folder=tmp_path))
    uses = [ToolUse(f"c{number}", "look", {}) for number in range(600)]
    outcomes = [refused_outcome(use, "x" * 5_000) for use in uses]
    outcomes = [type(each)(each.result, taint_labels=(TaintLabel("untrusted", "a page"),)) for each in outcomes]
    texts = [text_in(each.result) for each in box.limit_results(uses, outcomes)]
    assert all(text.count("x") > 100 for text in texts)
