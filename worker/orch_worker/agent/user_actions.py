"""User actions in an agent's process, without a model: run a tool, or run a command of an extension."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.ids import new_entry_id, new_id
from orch_protocol.core.messages import ToolUse
from orch_protocol.hooks.stages import HookRow
from orch_protocol.resources.slash_commands import (
    AgentAction,
    CommandCatalog,
    ListCommands,
    RecordCommand,
    RunUserTool,
    UserActionResult,
)
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

__all__ = ["ENTRY_TYPE", "UserActionAgent", "command_text", "run_action"]

ENTRY_TYPE: Final = "command"
"""The custom type of entries that record a user's action."""
CANCELLED: Final = "(the user ended it before it was done)"
MAX_HEARD: Final = 4_000
"""Maximum number of characters of the result, and of the typed command, that the model sees."""


class UserActionAgent(CommandContext, Protocol):
    """The interface of the agent that user actions need."""

    context: ToolContext
    transcript: Transcript

    @property
    def extensions(self) -> LoadedExtensions | None:
        """The loaded extensions, or None."""

    @property
    def busy(self) -> bool:
        """Whether a turn is running."""

    @property
    def hooks(self) -> AgentHooks | None:
        """The hooks of the running turn, or None."""

    def hooks_for(self, query_id: str, query: Query) -> AgentHooks | None:
        """Return the hooks for a new turn, or None."""

    def edit(self, edit: SessionEdit) -> EditResult:
        """Record a change of the session between turns."""


def command_text(line: str) -> str:
    """Return the text that informs the model about a command run by the user."""
    return f"[The user ran:]\n{clip(line, MAX_HEARD, 'the user typed all of it')}\n"


async def run_action(agent: UserActionAgent, action: AgentAction, rows: Sequence[HookRow] = ()) -> UserActionResult:
    """Execute the user action `action` and return its result. `rows` are the hooks of the root.

    Raise OrchError on failure.
    """
    if isinstance(action, RunUserTool):
        return await _run_tool(agent, action, rows)
    if isinstance(action, RecordCommand):
        result = UserActionResult(action.text, is_error=action.is_error)
        _record_action(agent, action.line, result, for_model=False)
        return result
    extensions = agent.extensions
    if isinstance(action, ListCommands):
        rows_of_commands = tuple(each.row for each in extensions.commands) if extensions is not None else ()
        return UserActionResult(
            catalog=CommandCatalog(rows_of_commands, notes=extensions.left_out if extensions is not None else ())
        )
    commands = {each.row.name: each for each in extensions.commands} if extensions is not None else {}
    if action.name not in commands:
        raise ConfigError(f"none of the agent's extensions has a command /{action.name}")
    runner, command = agent.context.agent_object(ExtensionCommands), commands[action.name]
    result = await runner.run(command, action.arguments, runner.context(command, agent))
    if action.line:
        _record_action(agent, action.line, result, for_model=False)
    return result


async def _run_tool(agent: UserActionAgent, action: RunUserTool, rows: Sequence[HookRow]) -> UserActionResult:
    """Run a tool even if the agent has no grant for the tool, because the user requests the call.

    The agent's sandbox, folder and timeout still apply.
    """
    tools = load([action.name])
    if reason := tools[0].missing(agent.context):
        return UserActionResult(reason, is_error=True)
    toolbox, call = Toolbox(tools, agent.context), ToolUse(new_id(), action.name, action.input)
    toolbox.counted = False
    try:
        outcome = await toolbox.dispatch(call)
        model_outcome = (
            await _filter_for_model(agent, call, outcome, rows) if action.heard and not action.looks else outcome
        )
    except asyncio.CancelledError:
        if not action.looks:
            _record_action(agent, action.line, UserActionResult(CANCELLED, is_error=True), for_model=action.heard)
        raise
    outcome.settle(outcome.usage)
    [shown] = toolbox.limit_results([call], [outcome])
    user_result = UserActionResult(text_in(shown.result), is_error=shown.result.is_error)
    if not action.looks:
        model_result = (
            user_result
            if model_outcome is outcome
            else UserActionResult(text_in(model_outcome.result), is_error=model_outcome.result.is_error)
        )
        _record_action(agent, action.line, model_result, for_model=action.heard)
    return user_result


async def _filter_for_model(
    agent: UserActionAgent, call: ToolUse, outcome: CallOutcome, rows: Sequence[HookRow]
) -> CallOutcome:
    """Return the part of `outcome` that a model may see according to hooks. The user sees the whole outcome."""
    if agent.busy:
        return await agent.hooks.filter_result(call, outcome) if agent.hooks is not None else outcome
    hooks = agent.hooks_for("", Query("", hooks=tuple(rows)))
    if hooks is None:
        return outcome
    try:
        return await hooks.filter_result(call, outcome)
    finally:
        if not agent.busy:  # A turn that has begun uses these hooks.
            await hooks.after_turn()


def _record_action(agent: UserActionAgent, line: str, result: UserActionResult, *, for_model: bool) -> None:
    """Record the action in the session.

    The model reads the record between turns, or as a steering message during a turn.
    """
    text = f"{command_text(line)}[It came to:]\n{clip(result.text, MAX_HEARD, 'the user saw all of it')}"
    if for_model and not agent.busy:
        agent.edit(SessionEdit(new_entry_id(agent.transcript.session.places), AddMessage(ENTRY_TYPE, text)))
        return
    agent.transcript.custom(ENTRY_TYPE, {"line": line, "text": result.text, "is_error": result.is_error})
    if for_model:
        agent.queue_own_message(text, False)
