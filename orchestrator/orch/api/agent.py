"""AsyncSubagent: the handle of one agent. It holds only an id, so any number of handles may exist."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from orch_protocol.core.errors import BadReplyError, ConfigError, OrchError, QueryTimeoutError
from orch_protocol.core.messages import Reply
from orch_protocol.core.prompts import PromptShown, ShowPrompt
from orch_protocol.core.values import TakeValue
from orch_protocol.policy.budget import Budget
from orch_protocol.resources.slash_commands import CommandCatalog, Execute, Executed, ShowCommands
from orch_protocol.services.requests import (
    CANCEL_TURN,
    COLLECT,
    KILL,
    QUERY,
    RESUME,
    REVOKE_TOOLS,
    SHOW_AGENT,
    SHOW_STATE,
    AgentRef,
    AgentRow,
    AgentShown,
    CancelTurn,
    Collect,
    Kill,
    QueryAgent,
    Resume,
    RevokeAgentTools,
    ShowAgent,
)
from orch_protocol.services.resources import EXECUTE_COMMAND, LIST_COMMANDS, SHOW_PROMPT, TAKE_VALUE
from orch_protocol.services.service import Service
from orch_protocol.services.sessions import CHANGE_SESSION, SET_PLAN_MODE
from orch_protocol.services.steering_queue import STEER, SteerAgent
from orch_protocol.session.tree import ChangeSession, SetModel, SetPlanMode, SetThinking
from orch_protocol.wire.worker_messages import TurnEvent

from ..policy.budget_rules import budget_change
from ..policy.caller import USER
from ..services import call, check_seconds
from ..services.agents.query import answer, ask
from ..supervisor.watchers import watching
from . import structured_output
from .agent_session import AsyncAgentSession
from .arguments import as_names
from .resources.agent_queue import AsyncAgentQueue
from .resources.agent_workspace import AsyncAgentWorkspace

if TYPE_CHECKING:
    from ..tree.agents.state import AgentRecord
    from .orchestrator import AsyncOrchestrator
    from .structured_output import Returned

__all__ = ["AsyncSubagent", "OnEvent"]

T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)
R = TypeVar("R")
OnEvent = Callable[[TurnEvent], None]


class AsyncSubagent:
    """One agent. Every method may raise AgentError; see `orch_protocol.core.errors`.

    `session`, `queue` and `workspace` group what concerns the agent's session file, the messages it has not received
    yet, and the objects it has at hand.
    """

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

    @property
    def session(self) -> AsyncAgentSession:
        """Its session: entries, branches, forks, labels, metadata, compaction."""
        return AsyncAgentSession(self)

    @property
    def queue(self) -> AsyncAgentQueue:
        """The steering messages and follow-ups that it has not received yet."""
        return AsyncAgentQueue(self._call, self.id)

    @property
    def workspace(self) -> AsyncAgentWorkspace:
        """The files, values and results that it has at hand."""
        return AsyncAgentWorkspace(self._call, self.id)

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
        """Send a prompt and wait for the reply.

        After `timeout` seconds it raises QueryTimeoutError; the turn continues, and the reply can be collected.

        With `returns` (a msgspec Struct, or any other type that JSON can represent) the result is a value of that type:
        the model gets its JSON schema, and one chance to correct an invalid reply; then BadReplyError.
        With `return_name` the result is a `Returned` whose `value` is what the agent's `run_python` bound to that name,
        or what is stored under that handle. Raises NoValueError when there is none; the reply can then be collected
        with `again=True`.
        `on_event` is called with each TurnEvent on the event loop's thread. Exceptions it raises go to the event loop's
        exception handler and do not stop the query.
        """
        if return_name is not None:
            if returns is not None:
                raise ConfigError("query takes returns= or return_name=, not both")
            return await self._returned(await self._query(prompt, timeout, on_event), return_name)
        if returns is None:
            return await self._query(prompt, timeout, on_event)
        try:
            return await self._read(
                await self._query(structured_output.prompt_for_value(prompt, returns), timeout, on_event), returns
            )
        except BadReplyError as error:
            reply = await self._query(structured_output.prompt_for_correction(error), timeout, on_event)
        try:
            return await self._read(reply, returns)
        except BadReplyError as error:
            raise BadReplyError(
                f"agent {self.name!r} ({self.id}) did not return a value that matches `returns` in two attempts: "
                f"{error}. Last reply: {reply.text[:200]!r}"
            ) from error

    async def _read(self, reply: Reply, returns: type[T]) -> T:
        text = await self.value(reply.whole) if reply.whole else reply.text  # which may lack its middle
        return structured_output.parse_value(text, returns)

    async def _query(self, prompt: str, seconds: float | None, on_event: OnEvent | None) -> Reply:
        watcher = None if on_event is None else watching(on_event)
        asked = QueryAgent(self.id, prompt, seconds, stream=watcher is not None)
        return await call(self._orchestrator.supervisor, USER, QUERY, asked, watcher)

    async def _returned(self, reply: Reply, name: str) -> Returned:
        from .structured_output import load_value  # by those who ask for a value

        taken = await self._call(TAKE_VALUE, TakeValue(self.id, name))
        return await asyncio.to_thread(load_value, taken, reply)

    async def value(self, name: str) -> Any:
        """Return what the agent's `run_python` has bound to `name`, or what is stored under that handle.

        Plain data, text, bytes, arrays and data frames are supported; values are never pickled. Raises NoValueError.
        """
        from .structured_output import value_of

        taken = await self._call(TAKE_VALUE, TakeValue(self.id, name))
        return await asyncio.to_thread(value_of, taken)

    def submit(self, prompt: str) -> asyncio.Future[Reply]:
        """Start a query and return a future of its reply. The reply can also be collected, once."""
        root = self._orchestrator.supervisor
        query_id = ask(root, self._node, USER, QueryAgent(self.id, prompt))
        reply = asyncio.ensure_future(answer(root, self._node, query_id))
        reply.add_done_callback(_mark_retrieved)
        return reply

    async def collect(self, *, timeout: float | None = None, again: bool = False, query: str = "") -> Reply | None:
        """Take the reply to the last query, once; None when it has not arrived within `timeout` seconds.

        Replies to queries that were started without waiting (`orch query --no-wait`) come first, oldest first. `query`
        selects a query by its id. `again` returns a reply that was already taken. Raises NoResultError when there is
        no such reply.
        """
        try:
            reply = await self._call(COLLECT, Collect(self.id, timeout, again, query))
        except QueryTimeoutError:
            return None
        return reply

    async def state(self) -> AgentRow:
        """Return the agent's current state: status, usage, task, model and more."""
        return await self._call(SHOW_STATE, AgentRef(self.id))

    async def show(self, messages: int = 20) -> AgentShown:
        """Return the agent's state with the last `messages` messages of its transcript."""
        return await self._call(SHOW_AGENT, ShowAgent(self.id, messages))

    async def prompt_parts(self) -> PromptShown:
        """Return the parts of the prompt of the agent's next request; `render` returns their text."""
        return await self._call(SHOW_PROMPT, ShowPrompt(self.id))

    async def ping(self, payload: bytes = b"", *, timeout: float = 10.0) -> None:
        """Return when the agent's process has answered. Raises AgentDiedError when it has none or does not answer."""
        check_seconds(timeout)
        if not isinstance(payload, bytes) or timeout is None:
            raise ConfigError(f"ping needs bytes and a number of seconds; got {payload!r} and {timeout!r}")
        await self._orchestrator.supervisor.ping(self._node, payload, timeout)

    async def steer(self, text: str) -> str:
        """Send a steering message: the agent receives it before its next model request, or with its next query.

        Returns the message's id; `queue.list` shows it until it is delivered.
        """
        return await self._say(text)

    async def follow_up(self, text: str) -> str:
        """Send a message that starts another turn after the current one; an idle agent starts at once.

        Returns the id of the message, or of the query that it became.
        """
        return await self._say(text, follow_up=True)

    async def _say(self, text: str, *, follow_up: bool = False) -> str:
        said = await self._call(STEER, SteerAgent(self.id, text, follow_up))
        return said.steer_id or said.query_id or ""

    async def revoke_tools(self, *, keep: Iterable[str]) -> None:
        """Revoke all tools except `keep` (names and categories), for this agent and its descendants, permanently.

        Calls that are running finish. Raises ToolNotGrantedError when `keep` names a tool that the agent does not have.
        """
        await self._call(REVOKE_TOOLS, RevokeAgentTools(self.id, as_names("keep", keep)))  # type: ignore[arg-type]

    async def set_planning(self, on: bool = True) -> None:
        """Switch plan mode on or off. In plan mode nothing is written or run before a plan is approved.

        The agent's process is stopped, and its Python state is lost. Raises AgentBusyError while a turn runs,
        ConfigError when an agent above it is still in plan mode.
        """
        await self._call(SET_PLAN_MODE, SetPlanMode(self.id, on))

    async def cancel(self, *, hard: bool = False) -> None:
        """Cancel the current turn: its query returns with stop reason `cancelled`. `hard` kills the process."""
        await self._call(CANCEL_TURN, CancelTurn(self.id, hard))

    async def kill(self) -> None:
        """Kill the agent and its descendants. Transcripts are kept, and `resume` makes it answer again."""
        await self._call(KILL, Kill((self.id,)))

    async def resume(self, *, max_cost: float | None = None, budget: Budget | None = None) -> None:
        """Let a killed agent answer again, and change its limits.

        `max_cost` is the total in USD that it may use; `math.inf` removes a limit. `budget` sets other limits.
        """
        await self._call(RESUME, Resume(self.id, budget_change(max_cost, budget)))

    async def commands(self) -> CommandCatalog:
        """Return the slash commands of the agent's session: built-in ones, prompt templates, those of extensions."""
        return await self._call(LIST_COMMANDS, ShowCommands(self.id))

    async def execute(self, line: str) -> Executed:
        """Execute a slash command, such as "/status", or a shell command, "!COMMAND".

        Returns its text and data, and the effect that the caller has to carry out, if there is one. Raises ConfigError
        for an unknown command or wrong arguments, and what the command raises.
        """
        return await self._call(EXECUTE_COMMAND, Execute(self.id, line))

    async def set_model(self, model: str) -> str:
        """Continue the conversation with another model; return it as `provider:name`.

        `model` is `provider:name` or `local`. The change is an entry of the session: it survives restarts, and
        `checkout` to an earlier entry undoes it. Raises AgentBusyError while a turn runs, ConfigError when the model is
        unknown, has no key, or is not allowed for this agent.
        """
        changed = await self._call(CHANGE_SESSION, ChangeSession(self.id, SetModel(model)))
        return changed.model or model

    async def set_thinking(self, level: str) -> str:
        """Set the reasoning effort: off, minimal, low, medium, high, xhigh or max. Returns the level in use.

        A model that does not support the level gets the next higher supported one, else the next lower. The change is
        an entry of the session, as with `set_model`. Raises AgentBusyError while a turn runs, ConfigError for another
        word, or for a model without levels.
        """
        changed = await self._call(CHANGE_SESSION, ChangeSession(self.id, SetThinking(level)))
        return changed.thinking or level

    @property
    def _node(self) -> AgentRecord:
        return self._orchestrator._supervisor_of_process.tree.agents[
            self.id
        ]  # name and pid are readable from any thread

    async def _call(self, service: Service[P, R], params: P) -> R:
        return await self._orchestrator._call(service, params)


def _mark_retrieved(reply: asyncio.Future[Reply]) -> None:
    """Mark the exception as retrieved: it can also be collected, so asyncio must not warn about it."""
    if not reply.cancelled():
        reply.exception()
