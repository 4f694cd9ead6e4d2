"""`agent.session`: the session of an agent, which is a tree of entries.

`checkout`, `branch` and `fork` take an entry or a turn number:

- An entry is named by its id, a unique prefix of the id, its label, or "root" (before the first entry).
- A turn number counts the turns of the current conversation: 1 is the first turn, -1 the last one.
  `checkout(n)` and `fork(n)` keep turn n and drop what came after it. `branch(n)` drops turn n as well and returns its
  prompt, so that you can ask again in other words. A number that is out of range raises EntryNotFoundError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.services.sessions import (
    CHANGE_SESSION,
    CHECK_SESSION,
    COMPACT_SESSION,
    FORK_SESSION,
    LIST_SESSION_METADATA,
    SHOW_SESSION,
)
from orch_protocol.session.tree import (
    AddMessage,
    Branch,
    Change,
    ChangeSession,
    CheckSession,
    CompactionDone,
    CompactSession,
    ForkSession,
    ListMetadata,
    MoveLeaf,
    SessionChanged,
    SessionChecked,
    SessionMetadata,
    SessionTree,
    SetLabel,
    SetMetadata,
    SetTitle,
    ShowSession,
)

if TYPE_CHECKING:
    from .agent import AsyncSubagent

__all__ = ["AsyncAgentSession", "entry_text"]


class AsyncAgentSession:
    """The session of one agent. An `entry` is named as described in `orch.api.agent_session`.

    Changes are made between turns and are on disk when the call returns. All of them raise AgentBusyError while a turn
    runs. No process is started for them, except by `compact` and by `summarize=True`.
    """

    def __init__(self, agent: AsyncSubagent) -> None:
        self._agent = agent
        self._call = agent._call

    async def tree(self, limit: int | None = None) -> SessionTree:
        """Return the session with its entries in file order, or only the last `limit` entries."""
        return await self._call(SHOW_SESSION, ShowSession(self._agent.id, limit))

    async def branches(self) -> list[Branch]:
        """Return the branches of the conversation, including the current one."""
        return list((await self.tree(0)).branches)

    async def checkout(self, entry: str | int | None, *, summary: str | None = None, summarize: bool = False) -> None:
        """Continue the conversation after an entry or turn (None: from the beginning).

        What came after it stays in the file as another branch. With `summary` the model reads that text about the
        branch it leaves. With `summarize` the agent's model writes it; if that fails, the summary consists of the
        prompts and replies. Raises EntryNotFoundError, AmbiguousRefError, AgentBusyError.
        """
        await self._change(MoveLeaf(entry_text(entry), summary, summarize))

    async def branch(self, entry: str | int, *, summary: str | None = None, summarize: bool = False) -> str | None:
        """Continue the conversation before a prompt, and return the prompt.

        `entry` is a turn number, or the entry of a prompt. For any other entry this is `checkout` and returns None.
        """
        move = MoveLeaf(entry_text(entry), summary, summarize)
        return (await self._change(move, ask_anew=True)).text

    async def fork(
        self, entry: str | int | None = None, *, all: bool = False, name: str | None = None, model: str | None = None
    ) -> AsyncSubagent:
        """Return a new agent with a copy of the conversation up to an entry or turn (None: the whole conversation).

        With `all` the copy has every branch of the session, and continues after `entry`. The copy has the same rights
        as this agent and its own copy of the archives; it has no process until its first query. Entries keep their
        ids. With `model` another model answers. Raises EntryNotFoundError, and AgentBusyError when a turn runs and no
        entry is given.
        """
        request = ForkSession(self._agent.id, entry_text(entry), name, model, all)
        forked = await self._call(FORK_SESSION, request)
        return self._agent._orchestrator._handle(forked.id)

    async def label(self, entry: str | int, label: str | None) -> None:
        """Give an entry a label, by which it can be found later; None removes it."""
        await self._change(SetLabel(entry_text(entry) or "", label))

    async def title(self, title: str | None) -> None:
        """Set the title of the session; None removes it."""
        await self._change(SetTitle(title))

    async def add_message(self, text: str, *, kind: str = "note", display: bool = True) -> None:
        """Add a message to the conversation without starting a turn. The model reads it with the next query.

        `display` says whether user interfaces show it.
        """
        await self._change(AddMessage(kind, text, display))

    async def set_meta(self, kind: str, data: Any) -> str:
        """Attach JSON metadata to the session (not sent to the model); return the id of its entry.

        The entry belongs to the current branch: `checkout` to an earlier entry hides it, and a fork copies it. Raises
        ConfigError when `data` is not JSON data.
        """
        from ..archival.adapters.base import to_json_data  # imported here: only `set_meta` needs it

        try:
            builtins = msgspec.to_builtins(data, str_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"metadata {kind!r} must be JSON data: {error}") from error
        return (await self._change(SetMetadata(kind, to_json_data(builtins, kind)))).entry

    async def get_meta(self, kind: str | None = None) -> list[SessionMetadata]:
        """Return the metadata on the current branch, of one kind or all, oldest first. The last item is in force."""
        return await self._call(LIST_SESSION_METADATA, ListMetadata(self._agent.id, kind))

    async def compact(self, instructions: str = "") -> CompactionDone:
        """Replace all but the last turns with a summary now; return what was replaced and the token counts.

        The model that writes the summary gets `instructions`. A cold agent gets a process for this. Raises
        ConfigError when the summary would not be shorter than what it replaces.
        """
        return await self._call(COMPACT_SESSION, CompactSession(self._agent.id, instructions))

    async def fsck(self, *, repair: bool = False) -> SessionChecked:
        """Check the session file: torn writes, damaged lines, duplicate ids, cycles, another agent's file.

        With `repair` a repaired copy replaces the file, and the damaged file is kept beside it (`kept`). Raises
        ForeignFileError when the file belongs to another agent, StoreError.
        """
        return await self._call(CHECK_SESSION, CheckSession(self._agent.id, repair))

    async def _change(self, change: Change, *, ask_anew: bool = False) -> SessionChanged:
        return await self._call(CHANGE_SESSION, ChangeSession(self._agent.id, change, ask_anew))


def entry_text(entry: str | int | None) -> str | None:
    """Return an entry as services take it: turn 2 is "turn:2"."""
    return f"turn:{entry}" if isinstance(entry, int) else entry
