"""A handle on one agent, for asynchronous programs. It holds an id and nothing else: any number may exist."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from orch_protocol.agent.spec import QueueMode
from orch_protocol.core.budget import Budget
from orch_protocol.core.errors import BadReplyError, ConfigError, OrchError, QueryTimeoutError
from orch_protocol.core.messages import Reply
from orch_protocol.core.prompts import PromptShown, ShowPrompt
from orch_protocol.core.values import Taken, TakeValue
from orch_protocol.core.workspace import Arranged, ArrangeWorkspace, ShowWorkspace, WorkspaceShown
from orch_protocol.resources.slash_commands import CommandCatalog, Execute, Executed, ShowCommands
from orch_protocol.services.requests import (
    AgentRow,
    CancelTurn,
    Collect,
    Kill,
    NarrowAgent,
    QueryAgent,
    Ref,
    Resume,
    Show,
    Shown,
)
from orch_protocol.services.steering_queue import AgentSteered, ClearQueue, Queued, QueueShown, SetQueue, SteerAgent
from orch_protocol.session.tree import (
    Branch,
    Change,
    Changed,
    ChangeSession,
    Choose,
    Compacted,
    CompactSession,
    Forked,
    ForkSession,
    FsckSession,
    Inform,
    Keep,
    Kept,
    ListKept,
    Move,
    Relabel,
    Rename,
    SessionChecked,
    SessionShown,
    SetPlanning,
    ShowSession,
    Think,
)
from orch_protocol.wire.worker_messages import TurnEvent

from ..policy.budget_rules import budget_change
from ..services import call, check_seconds
from ..services.agents.query import answer, ask
from ..supervisor.watchers import watching
from . import structured_output
from .arguments import names_of

if TYPE_CHECKING:
    from ..tree.agents.state import Node
    from .orchestrator import AsyncOrchestrator
    from .structured_output import Returned

__all__ = ["AsyncSubagent", "OnEvent"]

T = TypeVar("T")
OnEvent = Callable[[TurnEvent], None]


class AsyncSubagent:
    """One agent. Every method may raise AgentError; see `orch_protocol.core.errors`."""

    def __init__(self, orchestrator: AsyncOrchestrator, id: str) -> None:
        self._orchestrator = orchestrator
        self.id = id

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__name__} {self.id} {self.name!r}>"
        except OrchError:  # its orchestrator is closed
            return f"<{type(self).__name__} {self.id}>"

    @property
    def seq(self) -> int:
        """Its sequence number."""
        return self._node.spec.seq

    @property
    def name(self) -> str:
        """Its name."""
        return self._node.spec.name

    @property
    def pid(self) -> int | None:
        """The process id of its worker, None while it has none."""
        return self._node.pid

    @overload
    async def query(
        self, prompt: str, *, timeout: float | None = None, returns: type[T], on_event: OnEvent | None = None
    ) -> T: ...
    @overload
    async def query(
        self, prompt: str, *, timeout: float | None = None, return_name: str, on_event: OnEvent | None = None
    ) -> Returned: ...
    @overload
    async def query(
        self, prompt: str, *, timeout: float | None = None, returns: None = None, on_event: OnEvent | None = None
    ) -> Reply: ...
    async def query(
        self,
        prompt: str,
        *,
        timeout: float | None = None,
        returns: type[T] | None = None,
        return_name: str | None = None,
        on_event: OnEvent | None = None,
    ) -> Reply | Returned | T:
        """Ask and wait for the reply, at most `timeout` seconds; then QueryTimeoutError, and the agent works on.

        With `returns` (a msgspec Struct, or any type that JSON can be) the result is a value of it: the model is told
        its schema, and once what was wrong with its answer; then BadReplyError. With `return_name` the result has, in
        its `value`, what the agent's `run_python` has bound to that name by then, or holds under that handle; or
        NoValueError, and the reply can be collected `again`. `on_event` is called with each TurnEvent, on the event
        loop; what it raises is told there (`loop.set_exception_handler`) and stops nothing.
        """
        if return_name is not None:
            if returns is not None:
                raise ConfigError(
                    "a query returns what the model writes (returns=) or a value (return_name=), not both"
                )
            return await self._returned(await self._query(prompt, timeout, on_event), return_name)
        if returns is None:
            return await self._query(prompt, timeout, on_event)
        try:
            return await self._read(
                await self._query(structured_output.ask_for(prompt, returns), timeout, on_event), returns
            )
        except BadReplyError as error:
            reply = await self._query(structured_output.ask_to_mend(error), timeout, on_event)
        try:
            return await self._read(reply, returns)
        except BadReplyError as error:
            raise BadReplyError(
                f"agent {self.name!r} ({self.id}) was asked twice and did not reply with what `returns` is: {error}. "
                f"It said: {reply.text[:200]!r}"
            ) from error

    async def _read(self, reply: Reply, returns: type[T]) -> T:
        text = await self.value(reply.whole) if reply.whole else reply.text  # which may lack its middle
        return structured_output.read(text, returns)

    async def _query(self, prompt: str, seconds: float | None, on_event: OnEvent | None) -> Reply:
        watcher = None if on_event is None else watching(on_event)
        asked = QueryAgent(self.id, prompt, seconds, stream=watcher is not None)
        reply: Reply = await call(self._orchestrator.supervisor, None, "query", asked, watcher)
        return reply

    async def _returned(self, reply: Reply, name: str) -> Returned:
        from .structured_output import loaded  # by those who ask for a value

        taken: Taken = await self._call("value", TakeValue(self.id, name))
        return await asyncio.to_thread(loaded, taken, reply)

    async def value(self, name: str) -> Any:
        """Return what the agent's `run_python` has bound to `name`, or holds under that handle, as it is now.

        Plain data, text, bytes, arrays and data frames leave its process, never as pickles. Raises NoValueError.
        """
        from .structured_output import value_of

        taken: Taken = await self._call("value", TakeValue(self.id, name))
        return await asyncio.to_thread(value_of, taken)

    def submit(self, prompt: str) -> asyncio.Future[Reply]:
        """Ask now and return a future of the reply. The answer can be collected as well, once."""
        root = self._orchestrator.supervisor
        query_id = ask(root, self._node, None, QueryAgent(self.id, prompt))
        reply = asyncio.ensure_future(answer(root, self._node, query_id))
        reply.add_done_callback(_retrieve)
        return reply

    async def collect(self, *, timeout: float | None = None, again: bool = False, query: str = "") -> Reply | None:
        """Take the reply to the last query, once; None when it is not there within `timeout` seconds.

        Answers to queries that were put without waiting (`orch query --no-wait`) come first, the oldest before others.
        `query` is the id of the query whose answer is wanted instead. `again` returns an answer that was taken. Raises
        NoResultError when no such answer is kept.
        """
        try:
            reply: Reply = await self._call("collect", Collect(self.id, timeout, again, query))
        except QueryTimeoutError:
            return None
        return reply

    async def state(self) -> AgentRow:
        """Return what the agent is and does just now."""
        row: AgentRow = await self._call("state", Ref(self.id))
        return row

    async def show(self, messages: int = 20) -> Shown:
        """Return the agent with the last `messages` messages of its transcript."""
        shown: Shown = await self._call("show", Show(self.id, messages))
        return shown

    async def prompt_parts(self) -> PromptShown:
        """Return what its next request would say besides the conversation, part by part; `render` makes texts of it."""
        shown: PromptShown = await self._call("prompt", ShowPrompt(self.id))
        return shown

    async def ping(self, payload: bytes = b"", *, timeout: float = 10.0) -> None:
        """Return once the agent's process has answered; AgentDiedError when it has none or keeps silent."""
        check_seconds(timeout)
        if not isinstance(payload, bytes) or timeout is None:
            raise ConfigError(f"a ping takes bytes and a number of seconds, not {payload!r} and {timeout!r}")
        await self._orchestrator.supervisor.ping(self._node, payload, timeout)

    async def steer(self, text: str) -> str:
        """Say `text` to the agent: it hears it before its next model request, or with its next query.

        Returns the id of what was said, which `queue` shows until it is heard.
        """
        return await self._say(text)

    async def follow_up(self, text: str) -> str:
        """Let the agent go on with `text` when it would stop; one that does not work is asked at once.

        Returns the id of what was said, or of the query that it became.
        """
        return await self._say(text, follow_up=True)

    async def queue(self) -> list[Queued]:
        """Return what was said to the agent and it has not heard yet, in order: steering, then follow-ups."""
        shown: QueueShown = await self._call("queue", Ref(self.id))
        return list(shown.waiting)

    async def clear_queue(self, *ids: str) -> list[Queued]:
        """Take back what the agent has not heard: what `ids` name, or all of it. Returns what that was.

        What is not among it, the agent has heard meanwhile. Raises ConfigError for an id under which nothing waits.
        """
        cleared: QueueShown = await self._call("clear_queue", ClearQueue(self.id, ids or None))
        return list(cleared.waiting)

    async def set_queue(self, *, steering: QueueMode | None = None, follow_up: QueueMode | None = None) -> None:
        """Let the agent hear one thing at a time, or all that wait, from now on; None leaves it as it is."""
        await self._call("set_queue", SetQueue(self.id, steering, follow_up))

    async def _say(self, text: str, *, follow_up: bool = False) -> str:
        said: AgentSteered = await self._call("steer", SteerAgent(self.id, text, follow_up))
        return said.steer_id or said.query_id or ""

    async def narrow(self, tools: Iterable[str]) -> None:
        """Let the agent keep of its tools only these (names, and categories), and everybody below it no more than that.

        For good, and from when this returns: what runs then goes on. Raises ToolNotGrantedError for a tool that it may
        not use: nothing is ever given.
        """
        await self._call("narrow", NarrowAgent(self.id, names_of("tools", tools)))  # type: ignore[arg-type]

    async def set_planning(self, on: bool = True) -> None:
        """Let the agent go on in plan mode: nothing is written or run before a plan of it is approved; or without.

        Its process ends, and with it what its Python has bound. Raises AgentBusyError while a turn runs, ConfigError
        for one that is to leave plan mode before somebody above it does.
        """
        await self._call("set_planning", SetPlanning(self.id, on))

    async def cancel(self, *, hard: bool = False) -> None:
        """End the turn under way: its query is answered with stop reason `cancelled`. `hard` kills the process."""
        await self._call("cancel", CancelTurn(self.id, hard))

    async def kill(self) -> None:
        """End the agent and everything below it. Its transcript stays, and `resume` brings it back."""
        await self._call("kill", Kill((self.id,)))

    async def resume(self, *, max_cost: float | None = None, budget: Budget | None = None) -> None:
        """Let the agent answer again after a kill. With `max_cost` it may spend so many USD in all, `math.inf` any; so
        with each limit of `budget`."""
        await self._call("resume", Resume(self.id, budget_change(max_cost, budget)))

    async def commands(self) -> CommandCatalog:
        """Return the commands that can be executed in its session: built-in ones, templates, those of extensions."""
        catalog: CommandCatalog = await self._call("commands", ShowCommands(self.id))
        return catalog

    async def execute(self, line: str) -> Executed:
        """Execute a command of its session, such as `/status`, and return what came of it: text, data, and the effect
        that is yours to bring about, if there is one. `!COMMAND` is one for the shell.

        Raises ConfigError for what is no command or is written otherwise, and what the command raises.
        """
        executed: Executed = await self._call("execute", Execute(self.id, line))
        return executed

    # Its session: a tree, of which the conversation is one path.

    async def tree(self, most: int | None = None) -> SessionShown:
        """Return the agent's session, entry by entry, or its last `most` entries; read from the file."""
        shown: SessionShown = await self._call("session", ShowSession(self.id, most))
        return shown

    async def branches(self) -> list[Branch]:
        """Return the ways that the conversation went, the current one among them."""
        return list((await self.tree(0)).branches)

    async def checkout(self, entry: str | None, *, summary: str | None = None, summarise: bool = False) -> None:
        """Let the conversation go on behind `entry`, None: anew. What was said since stays, on its own branch.

        An entry is an id, the beginning of one, or a label. With `summary` the model is told what came of what it
        leaves; with `summarise` its model writes that, or without one it is what was asked and answered there. Raises
        AgentBusyError while a turn runs, EntryNotFoundError.
        """
        await self._change(Move(entry, summary, summarise))

    async def branch(self, entry: str, *, summary: str | None = None, summarise: bool = False) -> str | None:
        """Go back as `checkout` does, but before `entry` when it is a question; then return what was asked."""
        return (await self._change(Move(entry, summary, summarise), ask_anew=True)).text

    async def label(self, entry: str, label: str | None) -> None:
        """Give an entry a name, by which it can be found; None takes it away."""
        await self._change(Relabel(entry, label))

    async def title(self, title: str | None) -> None:
        """Give the session a name."""
        await self._change(Rename(title))

    async def set_model(self, model: str) -> str:
        """Let another model go on with the conversation, with all that was said; return it as `provider:name`.

        `model` is that, or `local`. It is on record in the session, and so what answers after a restart; who goes back
        before that place has the model that answered there. Raises AgentBusyError while a turn runs, ConfigError for a
        model that is not known, has no key, or may not be asked by this agent.
        """
        changed = await self._change(Choose(model))
        return changed.model or model

    async def set_thinking(self, level: str) -> str:
        """Let the agent's model think as much as `level` says from now on; return the level that it is told.

        One of off, minimal, low, medium, high, xhigh, max. A model that does not have it is told the next higher one
        that it has, else the next lower. It is on record, and changes, as `set_model` has it. Raises AgentBusyError
        while a turn runs, ConfigError for another word, or a model that is not known to take a level.
        """
        changed = await self._change(Think(level))
        return changed.thinking or level

    async def inform(self, text: str, *, kind: str = "note", display: bool = True) -> None:
        """Tell the model something between turns, without asking. People are shown it with `display` alone."""
        await self._change(Inform(kind, text, display))

    async def keep(self, kind: str, data: Any) -> str:
        """Keep `data`, anything that JSON can be, with the session; return the id of its entry.

        The model is not told. It is on the way that the conversation goes: who goes back before it does not have it, a
        copy has it. Raises ConfigError for what JSON cannot be, AgentBusyError while a turn runs.
        """
        from ..archival.adapters.base import to_json_data  # by those who keep something

        try:
            builtins = msgspec.to_builtins(data, str_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{kind!r} cannot be kept, for it is no JSON data: {error}") from error
        return (await self._change(Keep(kind, to_json_data(builtins, kind)))).entry

    async def kept(self, kind: str | None = None) -> list[Kept]:
        """Return what was kept with the session, of one kind or all, in order; of several the last one holds."""
        rows: list[Kept] = await self._call("kept", ListKept(self.id, kind))
        return rows

    async def compact(self, instructions: str = "") -> Compacted:
        """Let what was said first give way to a summary now, all but the last turns; return what went, and the sizes.

        Whoever writes the summary is told `instructions`. An agent without a process gets one. Raises AgentBusyError
        while a turn runs, ConfigError when all that could go is no longer than a summary of it.
        """
        done: Compacted = await self._call("compact", CompactSession(self.id, instructions))
        return done

    async def workspace(self, about: str | None = None) -> WorkspaceShown:
        """Return what the agent has at hand, those first that say most about `about`, None: the latest first.

        Files are compared with the disk: what was made from one that has changed is `stale`.
        """
        shown: WorkspaceShown = await self._call("workspace", ShowWorkspace(self.id, about))
        return shown

    async def pin(self, *names: str) -> tuple[str, ...]:
        """Let the agent be told first of the objects called `names`, and never forget them; return their full names.

        Raises AgentBusyError while a turn runs, EntryNotFoundError, AmbiguousRefError.
        """
        return (await self._arrange(ArrangeWorkspace(self.id, pin=names))).pinned

    async def unpin(self, *names: str) -> tuple[str, ...]:
        """Let objects be like others again; see `pin`."""
        return (await self._arrange(ArrangeWorkspace(self.id, unpin=names))).unpinned

    async def prune_workspace(self, *names: str, turns: int | None = None, bytes: int | None = None) -> tuple[str, ...]:
        """Forget the objects called `names`; without any, what its rules would have it forget. Return their names.

        `turns` without use, and `bytes` of all together, are other bounds than these. Raises as `pin` does.
        """
        asked = ArrangeWorkspace(self.id, drop=names, prune=not names, turns=turns, bytes=bytes)
        return (await self._arrange(asked)).dropped

    async def _arrange(self, asked: ArrangeWorkspace) -> Arranged:
        arranged: Arranged = await self._call("arrange_workspace", asked)
        return arranged

    async def fsck(self, *, repair: bool = False) -> SessionChecked:
        """Return what is wrong with the session's file: torn writes, damage, ids twice, circles, another's file.

        With `repair` a mended copy takes its place, and the damaged file is kept beside it (`kept`). Raises
        AgentBusyError while a turn runs, ForeignFileError for a file that is none of the agent's, StoreError.
        """
        checked: SessionChecked = await self._call("fsck_session", FsckSession(self.id, repair))
        return checked

    async def fork(
        self, entry: str | None = None, *, name: str | None = None, model: str | None = None
    ) -> AsyncSubagent:
        """Return another agent with a copy of the conversation up to `entry`, None: as it is, archives included.

        It may do what this one may; each goes its own way from there. Entries keep their ids in the copy. `model` is
        another one that is to answer. Raises AgentBusyError when a turn runs and no entry is named.
        """
        forked: Forked = await self._call("fork", ForkSession(self.id, entry, name, model))
        return AsyncSubagent(self._orchestrator, forked.id)

    async def _change(self, change: Change, *, ask_anew: bool = False) -> Changed:
        changed: Changed = await self._call("change_session", ChangeSession(self.id, change, ask_anew))
        return changed

    @property
    def _node(self) -> Node:
        return self._orchestrator._seen.tree.nodes[self.id]  # whose name and pid any loop may ask for

    async def _call(self, method: str, params: Any) -> Any:
        return await self._orchestrator._call(method, params)


def _retrieve(reply: asyncio.Future[Reply]) -> None:
    """Nobody need look at the future: a failure can be collected too, and is no news to the event loop."""
    if not reply.cancelled():
        reply.exception()
