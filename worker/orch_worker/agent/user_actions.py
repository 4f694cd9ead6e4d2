"""What an agent's process does for a person, without a model: tools that he runs, commands of extensions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_entry_id, new_id
from orch_protocol.core.messages import ToolUse
from orch_protocol.hooks.stages import HookRow
from orch_protocol.resources.slash_commands import CommandCatalog, Deed, ListCommands, RunUserTool, UserActionResult
from orch_protocol.session.tree import AddMessage, EditResult, SessionEdit
from orch_protocol.wire.worker_messages import Query

from ..conversation.tokens import clip
from ..extensions.slash_commands import CommandContext, ExtensionCommands
from ..session.transcript import Transcript
from ..tools.api.base import ToolContext
from ..tools.dispatch.presets import load
from ..tools.dispatch.result_limits import text_in
from ..tools.dispatch.toolbox import CallOutcome, Toolbox

if TYPE_CHECKING:
    from ..extensions.loader import LoadedExtensions
    from .hooks import AgentHooks

__all__ = ["ENTRY", "UserActionAgent", "done", "ran"]

ENTRY: Final = "command"
"""The custom type of entries that say what a person ran."""
ENDED: Final = "(the user ended it before it was done)"
MOST_HEARD: Final = 4_000
"""Characters of what came of it that the model is told, and as many of what was typed."""


class UserActionAgent(CommandContext, Protocol):
    """The agent as far as deeds are concerned."""

    context: ToolContext
    transcript: Transcript

    @property
    def extensions(self) -> LoadedExtensions | None:
        """What its extensions brought, None when it has none."""

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""

    @property
    def hooks(self) -> AgentHooks | None:
        """Those of the turn that runs, None when it has none."""

    def hooks_for(self, query_id: str, query: Query) -> AgentHooks | None:
        """Return the hooks of a turn that begins, None when there are none."""

    async def hooks_done(self, hooks: AgentHooks) -> None:
        """That turn is over."""

    def edit(self, edit: SessionEdit) -> EditResult:
        """Make a change to the session between turns."""


def ran(line: str) -> str:
    """Return how the model is told what a person has run."""
    return f"[The user ran:]\n{clip(line, MOST_HEARD, 'the user typed all of it')}\n"


async def done(agent: UserActionAgent, deed: Deed, rows: Sequence[HookRow] = ()) -> UserActionResult:
    """Do `deed` and return what came of it; `rows` are the hooks of the root. Raises OrchError."""
    if isinstance(deed, RunUserTool):
        return await _use(agent, deed, rows)
    brought = agent.extensions
    if isinstance(deed, ListCommands):
        ours = tuple(each.row for each in brought.commands) if brought is not None else ()
        return UserActionResult(catalog=CommandCatalog(ours, notes=brought.left_out if brought is not None else ()))
    commands = {each.row.name: each for each in brought.commands} if brought is not None else {}
    if deed.name not in commands:
        raise ConfigError(f"none of the agent's extensions brings a command /{deed.name}")
    did = await agent.context.own(ExtensionCommands).run(commands[deed.name], deed.said, agent)
    if deed.line:
        _put_on_record(agent, deed.line, did, heard=False)
    return did


async def _use(agent: UserActionAgent, deed: RunUserTool, rows: Sequence[HookRow]) -> UserActionResult:
    """Let a tool run, whatever the agent was granted, and may use: a person asks for it. Its sandbox, folder and
    deadline hold."""
    tools = load([deed.name])
    if why := tools[0].missing(agent.context):
        return UserActionResult(why, is_error=True)
    box, call = Toolbox(tools, agent.context), ToolUse(new_id(), deed.name, deed.input)
    box.counted = False
    try:
        outcome = await box.dispatch(call)
        seen = await _sifted(agent, call, outcome, rows) if deed.heard and not deed.looks else outcome
    except asyncio.CancelledError:
        if not deed.looks:
            _put_on_record(agent, deed.line, UserActionResult(ENDED, is_error=True), heard=deed.heard)
        raise
    outcome.settle(outcome.usage)
    [shown] = box.shown([call], [outcome])
    did = UserActionResult(text_in(shown.result), is_error=shown.result.is_error)
    if not deed.looks:
        told = did if seen is outcome else UserActionResult(text_in(seen.result), is_error=seen.result.is_error)
        _put_on_record(agent, deed.line, told, heard=deed.heard)
    return did


async def _sifted(agent: UserActionAgent, call: ToolUse, outcome: CallOutcome, rows: Sequence[HookRow]) -> CallOutcome:
    """Return `outcome` as hooks of results let a model see it; whoever ran it has seen all of it."""
    if agent.busy:
        return await agent.hooks.sifted(call, outcome) if agent.hooks is not None else outcome
    hooks = agent.hooks_for("", Query("", hooks=tuple(rows)))
    if hooks is None:
        return outcome
    try:
        return await hooks.sifted(call, outcome)
    finally:
        if not agent.busy:  # else they are for the turn that has begun
            await agent.hooks_done(hooks)


def _put_on_record(agent: UserActionAgent, line: str, did: UserActionResult, *, heard: bool) -> None:
    """Let the session say what was done. The model is told between turns, or, in one, as of what is steered."""
    told = f"{ran(line)}[It came to:]\n{clip(did.text, MOST_HEARD, 'the user saw all of it')}"
    if heard and not agent.busy:
        agent.edit(SessionEdit(new_entry_id(agent.transcript.session.places), AddMessage(ENTRY, told)))
        return
    agent.transcript.custom(ENTRY, {"line": line, "text": did.text, "is_error": did.is_error})
    if heard:
        agent.say_to_itself(told, False)
