"""`agent.session` is the session of an agent. A session is a tree of entries.

`checkout`, `branch` and `fork` take an entry or a turn number:

- An entry is identified by its id, a unique prefix of the id, its label, or "root" (before the first entry).
- Turn numbers refer to turns of the current conversation. Turn 1 is the first turn, turn -1 is the last turn.
  `checkout(n)` and `fork(n)` keep turn n and drop later turns. `branch(n)` also drops turn n and returns its prompt, so
  that you can change the prompt and send it again. A number out of range raises EntryNotFoundError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.services.sessions.compaction import COMPACT_SESSION, CompactSession
from orch_protocol.services.sessions.fork import FORK_SESSION, ForkSession
from orch_protocol.services.sessions.repair import CHECK_SESSION, CheckSession, SessionChecked
from orch_protocol.services.sessions.sessions import (
    CHANGE_SESSION,
    LIST_SESSION_METADATA,
    SHOW_SESSION,
    Branch,
    ChangeSession,
    ListMetadata,
    SessionChanged,
    SessionMetadata,
    SessionTree,
    ShowSession,
)
from orch_protocol.session.tree import AddMessage, Change, CompactionDone, MoveLeaf, SetLabel, SetMetadata, SetTitle

if TYPE_CHECKING:
    from .agent import AsyncSubagent

__all__ = ["AsyncAgentSession", "entry_text"]


class AsyncAgentSession:
    """The session of one agent. The ways to identify an `entry` are listed in `orch.api.agent_session`.

    Changes are made between turns and are on disk when the call returns. All methods that change the session raise
    AgentBusyError while a turn runs. Only `compact` and `summarize=True` start a process.
    """

    def __init__(self, agent: AsyncSubagent) -> None:
        self._agent = agent
        self._call = agent._call

    async def tree(self, limit: int | None = None) -> SessionTree:
        """Return the session with its entries in file order. With `limit`, return only the last `limit` entries."""
        return await self._call(SHOW_SESSION, ShowSession(self._agent.id, limit))

    async def branches(self) -> list[Branch]:
        """Return the branches of the conversation, including the current one."""
        return list((await self.tree(0)).branches)

    async def checkout(self, entry: str | int | None, *, summary: str | None = None, summarize: bool = False) -> None:
        """Continue the conversation after an entry or turn. With None, continue from the beginning.

        Later entries stay in the file as another branch. `summary` is a text that describes this other branch to the
        model. With `summarize` the agent's model writes this text. If the model fails, the text consists of the prompts
        and replies of the branch. Raises EntryNotFoundError, AmbiguousRefError, AgentBusyError.
        """
        await self._change(MoveLeaf(entry_text(entry), summary, summarize))

    async def branch(self, entry: str | int, *, summary: str | None = None, summarize: bool = False) -> str | None:
        """Continue the conversation before a prompt, and return the prompt.

        `entry` is a turn number or the entry of a prompt. For all other entries, the method works like `checkout` and
        returns None.
        """
        move = MoveLeaf(entry_text(entry), summary, summarize)
        return (await self._change(move, ask_anew=True)).text

    async def fork(
        self, entry: str | int | None = None, *, all: bool = False, name: str | None = None, model: str | None = None
    ) -> AsyncSubagent:
        """Return a new agent with a copy of the conversation up to an entry or turn.

        None copies the whole conversation. With `all` the copy has every branch of the session and continues after
        `entry`. The copy has the same rights as this agent and its own copy of the archives. The copy has no process
        until its first query. Entries keep their ids. With `model`, the copy uses another model. Raises
        EntryNotFoundError. Raises AgentBusyError when a turn runs and no entry is given.
        """
        request = ForkSession(self._agent.id, entry_text(entry), name, model, all)
        forked = await self._call(FORK_SESSION, request)
        return self._agent._orchestrator._handle(forked.id)

    async def label(self, entry: str | int, label: str | None) -> None:
        """Set the label of an entry. The label can then be used to identify the entry. None removes the label."""
        await self._change(SetLabel(entry_text(entry) or "", label))

    async def title(self, title: str | None) -> None:
        """Set the title of the session; None removes it."""
        await self._change(SetTitle(title))

    async def add_message(self, text: str, *, kind: str = "note", display: bool = True) -> None:
        """Add a message to the conversation without starting a turn. The model reads the message with the next query.

        With `display` False, user interfaces do not show the message.
        """
        await self._change(AddMessage(kind, text, display))

    async def set_meta(self, kind: str, data: Any) -> str:
        """Attach JSON metadata to the session.

        The metadata is not sent to the model. Return the id of the metadata's entry. The entry belongs to the current
        branch. A `checkout` to an earlier entry hides the metadata, and a fork copies the metadata. Raises ConfigError
        when `data` is not JSON data.
        """
        from ..archival.adapters.base import to_json_data  # imported here because only `set_meta` needs it

        try:
            builtins = msgspec.to_builtins(data, str_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"metadata {kind!r} must be JSON data: {error}") from error
        return (await self._change(SetMetadata(kind, to_json_data(builtins, kind)))).entry

    async def get_meta(self, kind: str | None = None) -> list[SessionMetadata]:
        """Return the metadata on the current branch, oldest first. `kind` selects one kind; None returns all kinds.

        The last item of a kind is its current value.
        """
        return await self._call(LIST_SESSION_METADATA, ListMetadata(self._agent.id, kind))

    async def compact(self, instructions: str = "") -> CompactionDone:
        """Replace all turns except the last ones with a summary. Return the replaced range and the token counts.

        `instructions` are given to the model that writes the summary. If the agent has no process, a process is
        started. Raises ConfigError when the summary would not be shorter than the replaced turns.
        """
        return await self._call(COMPACT_SESSION, CompactSession(self._agent.id, instructions))

    async def fsck(self, *, repair: bool = False) -> SessionChecked:
        """Check the session file for torn writes, damaged lines, duplicate ids and cycles.

        With `repair`, a repaired copy replaces the file. The damaged file is renamed, and `kept` in the result is its
        new path. Raises StoreError. Raises ForeignFileError when the file belongs to another agent.
        """
        return await self._call(CHECK_SESSION, CheckSession(self._agent.id, repair))

    async def _change(self, change: Change, *, ask_anew: bool = False) -> SessionChanged:
        return await self._call(CHANGE_SESSION, ChangeSession(self._agent.id, change, ask_anew))


def entry_text(entry: str | int | None) -> str | None:
    """Return an entry or turn number in the form that services accept. Turn 2 becomes "turn:2"."""
    return f"turn:{entry}" if isinstance(entry, int) else entry
