"""What an agent's process does for a person, without a model: tools that he runs, commands of extensions."""

from __future__ import annotations

from typing import Final, Protocol

from orch_protocol.ids import new_entry_id, new_id
from orch_protocol.messages import ToolUse
from orch_protocol.sessions import Edit, Edited, Inform
from orch_protocol.slash import Deed, Did, UseTool

from .tokens import clip
from .tools.base import ToolContext
from .tools.presets import load
from .tools.toolbox import Toolbox, text_in
from .transcript import Transcript

__all__ = ["ENTRY", "Doer", "done"]

ENTRY: Final = "command"
"""The custom type of entries that say what a person ran."""
MOST_HEARD: Final = 4_000
"""Characters of what came of it that the model is told."""


class Doer(Protocol):
    """The agent as far as deeds are concerned."""

    context: ToolContext
    transcript: Transcript

    @property
    def busy(self) -> bool:
        """Whether a turn runs."""

    def edit(self, edit: Edit) -> Edited:
        """Make a change to the session between turns."""

    def say_to_itself(self, text: str, follow_up: bool) -> None:
        """Let the agent hear `text` while it works."""


async def done(agent: Doer, deed: Deed) -> Did:
    """Do `deed` and return what came of it. Raises OrchError."""
    assert isinstance(deed, UseTool)
    return await _use(agent, deed)


async def _use(agent: Doer, deed: UseTool) -> Did:
    """Let a tool run, whatever the agent was granted: a person asks for it. Its sandbox, folder and deadline hold."""
    tools = load([deed.name])
    if why := tools[0].missing(agent.context):
        return Did(why, is_error=True)
    box, call = Toolbox(tools, agent.context), ToolUse(new_id(), deed.name, deed.input)
    outcome = await box.dispatch(call)
    outcome.settle(outcome.usage)
    [shown] = box.shown([call], [outcome])
    did = Did(text_in(shown.result), is_error=shown.result.is_error)
    if not deed.looks:
        _put_on_record(agent, deed, did)
    return did


def _put_on_record(agent: Doer, deed: UseTool, did: Did) -> None:
    """Let the session say what was done. The model is told between turns, or, in one, as of what is steered."""
    heard = f"[The user ran:]\n{deed.line}\n[It came to:]\n{clip(did.text, MOST_HEARD, 'the user saw all of it')}"
    if deed.heard and not agent.busy:
        agent.edit(Edit(new_entry_id(agent.transcript.session.places), Inform(ENTRY, heard)))
        return
    agent.transcript.custom(ENTRY, {"line": deed.line, "text": did.text, "is_error": did.is_error})
    if deed.heard:
        agent.say_to_itself(heard, False)
