"""output_sandbox: which results are shown in part, and what becomes of the rest."""

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


def said(text: str, options: OutputSandbox = OutputSandbox(), **fields: Any) -> Any:  # noqa: B008
    """Return what the hook says of a result."""
    [hook] = configured_hooks(["output_sandbox"], HookOptions(output_sandbox=options))
    return call(hook, returned(text=text, **fields))


def test_long_results_are_bounded_and_others_left_alone() -> None:
    """By their length, their tool, and whether they are results at all."""
    assert said(LONG) == ResultPatch(most=6_000)
    assert said(LONG, OutputSandbox(chars=1_000)) == ResultPatch(most=1_000)
    assert said("short") is None
    assert said(LONG, ran=False) is None
    assert said(LONG, OutputSandbox(tools=("bash",))) is None
    assert said(LONG, OutputSandbox(tools=("bash",)), name="bash") is not None


@tool
def look() -> ToolOutput:
    """Look."""
    return ToolOutput(LONG)


async def shown(folder: Path, *names: str, most: int) -> tuple[Toolbox, str]:
    """Return the tools of an agent, and what it is shown of a long result of which a hook lets it see `most`."""
    box = Toolbox([look, *load(names)], ToolContext(folder, folder=folder))
    use = ToolUse("c1", "look", {})
    outcome = refused_outcome(use, "")
    outcome = type(outcome)(with_text(outcome.result, LONG), most=most)
    (cut,) = box.shown([use], [outcome])
    return box, text_in(cut.result)


async def test_the_rest_is_read_under_its_handle(tmp_path: Path) -> None:
    """How it begins, how it ends, and where the whole of it is, in no more characters than were asked for."""
    box, text = await shown(tmp_path, "read_handle", most=1_000)
    assert len(text) <= 1_000
    assert text.startswith("line 0\n")
    assert text.endswith("line 1999\n")
    handle = re.search(r"\.h_\d+", text)
    assert handle is not None
    part = await box.dispatch(ToolUse("c2", "read_handle", {"handle": handle[0], "search": "line 1000"}))
    assert "line 1000" in text_in(part.result)


async def test_who_cannot_read_the_rest_sees_it(tmp_path: Path) -> None:
    """What an agent cannot get at later is not kept from it now."""
    _, text = await shown(tmp_path, most=1_000)
    assert text == LONG


async def test_many_strangers_results_at_once_are_never_cut_to_nothing(tmp_path: Path) -> None:
    """However many there are in a step, a label leaves room for some of each."""
    box = Toolbox([look], ToolContext(tmp_path, folder=tmp_path))
    uses = [ToolUse(f"c{number}", "look", {}) for number in range(600)]
    outcomes = [refused_outcome(use, "x" * 5_000) for use in uses]
    outcomes = [type(each)(each.result, marks=(TaintLabel("untrusted", "a page"),)) for each in outcomes]
    texts = [text_in(each.result) for each in box.shown(uses, outcomes)]
    assert all(text.count("x") > 100 for text in texts)
