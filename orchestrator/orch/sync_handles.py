"""One agent, for programs without an event loop: each method is that of `handles.AsyncSubagent`, and waits."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, overload

from orch_protocol.budget import Budget
from orch_protocol.messages import Reply
from orch_protocol.prompts import PromptShown
from orch_protocol.queue import Queued
from orch_protocol.services import AgentRow, Shown
from orch_protocol.sessions import Branch, Compacted, Kept, SessionChecked, SessionShown
from orch_protocol.slash import CommandCatalog, Executed
from orch_protocol.spec import QueueMode
from orch_protocol.workspace import WorkspaceShown

from .handles import AsyncSubagent, OnEvent

if TYPE_CHECKING:
    from .returned import Returned
    from .sync import Orchestrator

__all__ = ["Session", "Subagent"]

T = TypeVar("T")


class Subagent:
    """One agent, for ordinary programs. Every method may raise AgentError; see `orch_protocol.errors`."""

    def __init__(self, orchestrator: Orchestrator, agent: AsyncSubagent) -> None:
        self._orchestrator = orchestrator
        self._agent = agent
        self.id = agent.id

    def __repr__(self) -> str:
        return repr(self._agent).replace(type(self._agent).__name__, type(self).__name__, 1)

    @property
    def seq(self) -> int:
        """Its sequence number."""
        return self._agent.seq

    @property
    def name(self) -> str:
        """Its name."""
        return self._agent.name

    @property
    def pid(self) -> int | None:
        """The process id of its worker, None while it has none."""
        return self._agent.pid

    @overload
    def query(
        self, prompt: str, *, timeout: float | None = None, returns: type[T], on_event: OnEvent | None = None
    ) -> T: ...
    @overload
    def query(
        self, prompt: str, *, timeout: float | None = None, return_name: str, on_event: OnEvent | None = None
    ) -> Returned: ...
    @overload
    def query(
        self, prompt: str, *, timeout: float | None = None, returns: None = None, on_event: OnEvent | None = None
    ) -> Reply: ...
    def query(
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
        NoValueError, and the reply can be collected `again`. `on_event` is called with each TurnEvent, on the
        orchestrator's thread; what it raises is logged (by `asyncio`) and stops nothing.
        """
        asked: Any = {"timeout": timeout, "returns": returns, "return_name": return_name, "on_event": on_event}
        found: Reply | Returned | T = self._orchestrator._wait(self._agent.query(prompt, **asked))
        return found

    def value(self, name: str) -> Any:
        """Return what the agent's `run_python` has bound to `name`, or holds under that handle, as it is now.

        Plain data, text, bytes, arrays and data frames leave its process, never as pickles. Raises NoValueError.
        """
        return self._orchestrator._wait(self._agent.value(name))

    def submit(self, prompt: str) -> Future[Reply]:
        """Ask and return a future of the reply. The answer can be collected as well, once."""
        return self._orchestrator._start(self._submit(prompt))

    def collect(self, *, timeout: float | None = None, again: bool = False) -> Reply | None:
        """Take the reply to the last query, once; None when it is not there within `timeout` seconds.

        Answers to queries that were put without waiting (`orch query --no-wait`) come first, the oldest before others.
        """
        return self._orchestrator._wait(self._agent.collect(timeout=timeout, again=again))

    def state(self) -> AgentRow:
        """Return what the agent is and does just now."""
        return self._orchestrator._wait(self._agent.state())

    def show(self, messages: int = 20) -> Shown:
        """Return the agent with the last `messages` messages of its transcript."""
        return self._orchestrator._wait(self._agent.show(messages))

    def prompt_parts(self) -> PromptShown:
        """Return what its next request would say besides the conversation, part by part; `render` makes texts of it."""
        return self._orchestrator._wait(self._agent.prompt_parts())

    def ping(self, payload: bytes = b"", *, timeout: float = 10.0) -> None:
        """Return once the agent's process has answered; AgentDiedError when it has none or keeps silent."""
        self._orchestrator._wait(self._agent.ping(payload, timeout=timeout))

    def steer(self, text: str) -> str:
        """Say `text` to the agent: it hears it before its next model request, or with its next query.

        Returns the id of what was said, which `queue` shows until it is heard.
        """
        return self._orchestrator._wait(self._agent.steer(text))

    def follow_up(self, text: str) -> str:
        """Let the agent go on with `text` when it would stop; one that does not work is asked at once.

        Returns the id of what was said, or of the query that it became.
        """
        return self._orchestrator._wait(self._agent.follow_up(text))

    def queue(self) -> list[Queued]:
        """Return what was said to the agent and it has not heard yet, in order: steering, then follow-ups."""
        return self._orchestrator._wait(self._agent.queue())

    def clear_queue(self, *ids: str) -> list[Queued]:
        """Take back what the agent has not heard: what `ids` name, or all of it. Returns what that was.

        What is not among it, the agent has heard meanwhile. Raises ConfigError for an id under which nothing waits.
        """
        return self._orchestrator._wait(self._agent.clear_queue(*ids))

    def set_queue(self, *, steering: QueueMode | None = None, follow_up: QueueMode | None = None) -> None:
        """Let the agent hear one thing at a time, or all that wait, from now on; None leaves it as it is."""
        self._orchestrator._wait(self._agent.set_queue(steering=steering, follow_up=follow_up))

    def set_planning(self, on: bool = True) -> None:
        """Let the agent go on in plan mode, or without it; see `AsyncSubagent.set_planning`."""
        self._orchestrator._wait(self._agent.set_planning(on))

    def narrow(self, tools: Iterable[str]) -> None:
        """Let the agent keep of its tools only these (names, and categories), and everybody below it no more than that.

        For good, and from when this returns: what runs then goes on. Raises ToolNotGrantedError for a tool that it may
        not use: nothing is ever given.
        """
        self._orchestrator._wait(self._agent.narrow(tools))

    def cancel(self, *, hard: bool = False) -> None:
        """End the turn under way: its query is answered with stop reason `cancelled`. `hard` kills the process."""
        self._orchestrator._wait(self._agent.cancel(hard=hard))

    def kill(self) -> None:
        """End the agent and everything below it. Its transcript stays, and `resume` brings it back."""
        self._orchestrator._wait(self._agent.kill())

    def resume(self, *, max_cost: float | None = None, budget: Budget | None = None) -> None:
        """Let the agent answer again after a kill, and use so much in all. See AsyncSubagent.resume."""
        self._orchestrator._wait(self._agent.resume(max_cost=max_cost, budget=budget))

    def commands(self) -> CommandCatalog:
        """Return the commands that can be executed in its session: built-in ones, templates, those of extensions."""
        return self._orchestrator._wait(self._agent.commands())

    def execute(self, line: str) -> Executed:
        """Execute a command of its session, such as `/status`. See AsyncSubagent.execute."""
        return self._orchestrator._wait(self._agent.execute(line))

    # Its session: a tree, of which the conversation is one path.

    def tree(self, most: int | None = None) -> SessionShown:
        """Return the agent's session, entry by entry, or its last `most` entries; read from the file."""
        return self._orchestrator._wait(self._agent.tree(most))

    def branches(self) -> list[Branch]:
        """Return the ways that the conversation went, the current one among them."""
        return self._orchestrator._wait(self._agent.branches())

    def checkout(self, entry: str | None, *, summary: str | None = None, summarise: bool = False) -> None:
        """Let the conversation go on behind `entry`, None: anew. What was said since stays, on its own branch.

        An entry is an id, the beginning of one, or a label. With `summary` the model is told what came of what it
        leaves; with `summarise` its model writes that, or without one it is what was asked and answered there. Raises
        AgentBusyError while a turn runs, EntryNotFoundError.
        """
        self._orchestrator._wait(self._agent.checkout(entry, summary=summary, summarise=summarise))

    def branch(self, entry: str, *, summary: str | None = None, summarise: bool = False) -> str | None:
        """Go back as `checkout` does, but before `entry` when it is a question; then return what was asked."""
        return self._orchestrator._wait(self._agent.branch(entry, summary=summary, summarise=summarise))

    def label(self, entry: str, label: str | None) -> None:
        """Give an entry a name, by which it can be found; None takes it away."""
        self._orchestrator._wait(self._agent.label(entry, label))

    def title(self, title: str | None) -> None:
        """Give the session a name."""
        self._orchestrator._wait(self._agent.title(title))

    def set_model(self, model: str) -> str:
        """Let another model go on with the conversation; see `AsyncSubagent.set_model`."""
        return self._orchestrator._wait(self._agent.set_model(model))

    def set_thinking(self, level: str) -> str:
        """Let the model think as much as `level` says; see `AsyncSubagent.set_thinking`."""
        return self._orchestrator._wait(self._agent.set_thinking(level))

    def inform(self, text: str, *, kind: str = "note", display: bool = True) -> None:
        """Tell the model something between turns, without asking. People are shown it with `display` alone."""
        self._orchestrator._wait(self._agent.inform(text, kind=kind, display=display))

    def keep(self, kind: str, data: Any) -> str:
        """Keep `data`, anything that JSON can be, with the session; return the id of its entry.

        The model is not told. It is on the way that the conversation goes: who goes back before it does not have it, a
        copy has it. Raises ConfigError for what JSON cannot be, AgentBusyError while a turn runs.
        """
        return self._orchestrator._wait(self._agent.keep(kind, data))

    def kept(self, kind: str | None = None) -> list[Kept]:
        """Return what was kept with the session, of one kind or all, in order; of several the last one holds."""
        return self._orchestrator._wait(self._agent.kept(kind))

    def compact(self, instructions: str = "") -> Compacted:
        """Let what was said first give way to a summary now, all but the last turns; return what went, and the sizes.

        Whoever writes the summary is told `instructions`. An agent without a process gets one. Raises AgentBusyError
        while a turn runs, ConfigError when all that could go is no longer than a summary of it.
        """
        return self._orchestrator._wait(self._agent.compact(instructions))

    def workspace(self, about: str | None = None) -> WorkspaceShown:
        """Return what the agent has at hand, those first that say most about `about`, None: the latest first.

        Files are compared with the disk: what was made from one that has changed is `stale`.
        """
        return self._orchestrator._wait(self._agent.workspace(about))

    def pin(self, *names: str) -> tuple[str, ...]:
        """Let the agent be told first of the objects called `names`, and never forget them; return their full names.

        Raises AgentBusyError while a turn runs, EntryNotFoundError, AmbiguousRefError.
        """
        return self._orchestrator._wait(self._agent.pin(*names))

    def unpin(self, *names: str) -> tuple[str, ...]:
        """Let objects be like others again; see `pin`."""
        return self._orchestrator._wait(self._agent.unpin(*names))

    def prune_workspace(self, *names: str, turns: int | None = None, bytes: int | None = None) -> tuple[str, ...]:
        """Forget the objects called `names`; without any, what its rules would have it forget. Return their names.

        `turns` without use, and `bytes` of all together, are other bounds than these. Raises as `pin` does.
        """
        return self._orchestrator._wait(self._agent.prune_workspace(*names, turns=turns, bytes=bytes))

    def fsck(self, *, repair: bool = False) -> SessionChecked:
        """Return what is wrong with the session's file: torn writes, damage, ids twice, circles, another's file.

        With `repair` a mended copy takes its place, and the damaged file is kept beside it (`kept`). Raises
        AgentBusyError while a turn runs, ForeignFileError for a file that is none of the agent's, StoreError.
        """
        return self._orchestrator._wait(self._agent.fsck(repair=repair))

    def fork(self, entry: str | None = None, *, name: str | None = None, model: str | None = None) -> Subagent:
        """Return another agent with a copy of the conversation up to `entry`, None: as it is, archives included.

        It may do what this one may; each goes its own way from there. Entries keep their ids in the copy. `model` is
        another one that is to answer. Raises AgentBusyError when a turn runs and no entry is named.
        """
        forked = self._orchestrator._wait(self._agent.fork(entry, name=name, model=model))
        return Subagent(self._orchestrator, forked)

    async def _submit(self, prompt: str) -> Reply:
        return await self._agent.submit(prompt)


class Session(Subagent):
    """An agent that one talks to: what any agent can do, and `run`."""

    def run(self, text: str, *, timeout: float | None = None, on_event: OnEvent | None = None) -> Reply:
        """Say `text`, and return what the agent says to it; see `query`.

        Where its turn goes to an archive, `archived_to` of the reply is who holds it.
        """
        return self.query(text, timeout=timeout, on_event=on_event)
