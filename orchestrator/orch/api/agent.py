"""AsyncSubagent: the handle of one agent. A handle contains only an id, so an agent can have several handles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from orch_protocol.core.errors import (
    AgentDiedError,
    BackendError,
    BadReplyError,
    ConcurrencyLimitError,
    ConfigError,
    OrchError,
    QueryTimeoutError,
)
from orch_protocol.core.messages import Image, Prompt, Reply, prompt_of
from orch_protocol.core.prompts import PromptShown
from orch_protocol.policy.budget import Budget
from orch_protocol.resources.slash_commands import CommandCatalog
from orch_protocol.services.agents.lifecycle import CANCEL_TURN, KILL, RESUME, CancelTurn, Kill, Resume
from orch_protocol.services.agents.query import COLLECT, QUERY, Collect, QueryAgent
from orch_protocol.services.agents.status import SHOW_AGENT, SHOW_STATE, AgentRow, AgentShown, ShowAgent
from orch_protocol.services.agents.steering import STEER, SteerAgent
from orch_protocol.services.agents.worktrees import MERGE, MergeAgent, Merged
from orch_protocol.services.resources.prompts import SHOW_PROMPT, ShowPrompt
from orch_protocol.services.resources.slash_commands import (
    EXECUTE_COMMAND,
    LIST_COMMANDS,
    Execute,
    Executed,
    ShowCommands,
)
from orch_protocol.services.resources.tools import REVOKE_TOOLS, RevokeAgentTools
from orch_protocol.services.resources.values import TAKE_VALUE, TakeValue
from orch_protocol.services.service import AgentRef, Service
from orch_protocol.services.sessions.plan_mode import SET_PLAN_MODE, SetPlanMode
from orch_protocol.services.sessions.sessions import CHANGE_SESSION, ChangeSession
from orch_protocol.session.tree import SetModel, SetThinking
from orch_protocol.wire.worker_messages import TurnEvent

from ..policy.budget_rules import budget_change
from ..policy.caller import USER
from ..services import call, check_seconds
from ..services.agents.query import answer, ask, ask_with_place, check_prompt
from ..services.agents.worktrees import with_report
from ..supervisor.watchers import watching
from ..tree.interface.topics import QueryTopic
from . import structured_output
from .agent_session import AsyncAgentSession
from .arguments import as_names, named_arguments
from .resources.agent_queue import AsyncAgentQueue
from .resources.agent_workspace import AsyncAgentWorkspace
from .return_types import JsonSchema, ReturnType, return_type

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor
    from ..tree.agents.state import AgentRecord
    from .orchestrator import AsyncOrchestrator
    from .structured_output import Returned

__all__ = ["AsyncSubagent", "OnEvent", "parse_with_correction"]

T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)
R = TypeVar("R")
OnEvent = Callable[[TurnEvent], None]


class AsyncSubagent:
    """One agent of the run. Every method may raise AgentError; see `orch_protocol.core.errors`.

    `session` has the methods for the agent's session file. `queue` has the methods for its undelivered messages, and
    `workspace` those for the objects in its workspace.
    """

    def __init__(self, orchestrator: AsyncOrchestrator, id: str) -> None:
        self._orchestrator = orchestrator
        self.id = id

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__name__} {self.id} {self.name!r}>"
        except OrchError:  # the agent's orchestrator is closed
            return f"<{type(self).__name__} {self.id}>"

    @property
    def seq(self) -> int:
        """The agent's sequence number."""
        return self._node.spec.seq

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._node.spec.name

    @property
    def pid(self) -> int | None:
        """The process id of the agent's worker, or None if the agent has no process."""
        return self._node.pid

    @property
    def session(self) -> AsyncAgentSession:
        """The agent's session with its entries, branches, forks, labels, metadata and compaction."""
        return AsyncAgentSession(self)

    @property
    def queue(self) -> AsyncAgentQueue:
        """The steering messages and follow-ups that the agent has not received yet."""
        return AsyncAgentQueue(self._call, self.id)

    @property
    def workspace(self) -> AsyncAgentWorkspace:
        """The agent's files, values and results."""
        return AsyncAgentWorkspace(self._call, self.id)

    @overload
    async def query(
        self, prompt: Prompt, *, timeout: float | None = None, returns: type[T], on_event: OnEvent | None = None
    ) -> T: ...
    @overload
    async def query(
        self, prompt: Prompt, *, timeout: float | None = None, returns: JsonSchema, on_event: OnEvent | None = None
    ) -> Any: ...
    @overload
    async def query(
        self, prompt: Prompt, *, timeout: float | None = None, return_name: str, on_event: OnEvent | None = None
    ) -> Returned: ...
    @overload
    async def query(
        self, prompt: Prompt, *, timeout: float | None = None, returns: None = None, on_event: OnEvent | None = None
    ) -> Reply: ...
    @named_arguments()
    async def query(
        self,
        prompt: Prompt,
        *,
        timeout: float | None = None,
        returns: type[T] | JsonSchema | None = None,
        return_name: str | None = None,
        on_event: OnEvent | None = None,
    ) -> Reply | Returned | T:
        """Send a prompt and wait for the reply. A prompt is text, or a list of texts and images (`orch.Image`).

        If the reply takes longer than `timeout` seconds, the call raises QueryTimeoutError. The turn continues, and
        `collect` returns the reply later.

        With `returns` the result is a value of that type. The type is a dataclass, TypedDict, msgspec Struct, pydantic
        model, or another type that JSON can represent. For a JSON schema the result is JSON data. The model gets the
        JSON schema of the type. If the reply is invalid, the model can correct it once. If the correction is invalid
        too, the call raises BadReplyError. If no model is configured, the call raises ConfigError.

        With `return_name` the result is a `Returned`. The `value` of the `Returned` is the object that the agent's
        `run_python` bound to that name, or the object stored under that handle. If there is no such object, the call
        raises NoValueError, and `collect(again=True)` returns the reply.

        The event loop's thread calls `on_event` with each TurnEvent. Exceptions raised by `on_event` go to the event
        loop's exception handler and do not stop the query.
        """
        text, images = prompt_of(prompt)
        if return_name is not None:
            if returns is not None:
                raise ConfigError("query takes returns= or return_name=, not both")
            return await self._load_returned(await self._query(text, timeout, on_event, images), return_name)
        if returns is None:
            return await self._query(text, timeout, on_event, images)
        expected: ReturnType[T] = return_type(returns)
        structured_output.check_model(self._node.model)
        reply = await self._query(structured_output.prompt_for_value(text, expected), timeout, on_event, images)
        return (
            await parse_with_correction(
                self, reply, expected, lambda correction: self._query(correction, timeout, on_event)
            )
        )[0]

    async def _parse_reply(self, reply: Reply, expected: ReturnType[T]) -> T:
        text = await self.value(reply.whole) if reply.whole else reply.text  # `text` may be truncated
        return structured_output.parse_value(text, expected)

    async def _query(
        self, prompt: str, timeout: float | None, on_event: OnEvent | None, images: tuple[Image, ...] = ()
    ) -> Reply:
        watcher = None if on_event is None else watching(on_event)
        request = QueryAgent(self.id, prompt, timeout, stream=watcher is not None, images=images)
        return await call(self._orchestrator.supervisor, USER, QUERY, request, watcher)

    async def _load_returned(self, reply: Reply, name: str) -> Returned:
        from .structured_output import load_value  # imported here because only `return_name` needs this module

        exported = await self._call(TAKE_VALUE, TakeValue(self.id, name))
        return await asyncio.to_thread(load_value, exported, reply)

    async def value(self, name: str) -> Any:
        """Return the object that the agent's `run_python` bound to `name`, or the object stored under that handle.

        Plain data, text, bytes, arrays and data frames are supported. Values are never pickled. Raises NoValueError.
        """
        from .structured_output import value_of

        exported = await self._call(TAKE_VALUE, TakeValue(self.id, name))
        return await asyncio.to_thread(value_of, exported)

    @overload
    def submit(self, prompt: Prompt, *, queue: bool = False, returns: type[T]) -> asyncio.Future[T]: ...
    @overload
    def submit(self, prompt: Prompt, *, queue: bool = False, returns: JsonSchema) -> asyncio.Future[Any]: ...
    @overload
    def submit(self, prompt: Prompt, *, queue: bool = False, returns: None = None) -> asyncio.Future[Reply]: ...
    def submit(
        self, prompt: Prompt, *, queue: bool = False, returns: type[T] | JsonSchema | None = None
    ) -> asyncio.Future[Reply] | asyncio.Future[T]:
        """Start a query and return a future of its reply. `collect` can also return this reply, once.

        Raises AgentBusyError if another query is running. With `queue`, the new query waits until the running query and
        all queued queries are done. A query also waits while the agent has no process and no other agent is idle, if
        `subagents.max_concurrent` is reached. A waiting query exists only in this program; cancelling the future
        withdraws the query. With `returns`, the result of the future is a value of this type; see `query`.
        """
        text, images = prompt_of(prompt)
        if returns is None:
            return self._submit(text, images, queue=queue)
        expected: ReturnType[T] = return_type(returns)
        structured_output.check_model(self._node.model)
        reply = self._submit(structured_output.prompt_for_value(text, expected), images, queue=queue)
        value = asyncio.ensure_future(self._parse_submitted(reply, expected))
        value.add_done_callback(_mark_retrieved)
        return value

    async def _parse_submitted(self, reply: asyncio.Future[Reply], expected: ReturnType[T]) -> T:
        # Queries that were queued during the first attempt run before the correction.
        return (
            await parse_with_correction(
                self, await reply, expected, lambda correction: self._submit(correction, queue=True)
            )
        )[0]

    def _submit(self, prompt: str, images: tuple[Image, ...] = (), *, queue: bool) -> asyncio.Future[Reply]:
        root, previous = self._orchestrator.supervisor, self._orchestrator.queued.get(self.id)
        request = QueryAgent(self.id, prompt, images=images)
        if queue and (previous is not None or self._node.pending is not None):
            check_prompt(self._node, prompt, images)
            reply = asyncio.ensure_future(self._run_queued_query(root, request, previous))
            # A cancelled query keeps its place until the queries before it are done, so that the order stays.
            place = asyncio.ensure_future(asyncio.wait([reply] if previous is None else [previous, reply]))
            self._orchestrator.queued[self.id] = place
            place.add_done_callback(self._leave_queue)
        else:
            try:
                query_id = ask(root, self._node, USER, request)
                reply = asyncio.ensure_future(self._wait_for_reply(query_id))
            except ConcurrencyLimitError:
                if not root.tree.is_full:
                    raise
                reply = asyncio.ensure_future(self._wait_for_place(root, request))
        reply.add_done_callback(_mark_retrieved)
        return reply

    async def _wait_for_place(self, root: Supervisor, request: QueryAgent) -> Reply:
        """Query the agent when it may get a process, and return the reply."""
        return await self._wait_for_reply(await ask_with_place(root, self._node, USER, request))

    async def _wait_for_reply(self, query_id: str) -> Reply:
        root = self._orchestrator.supervisor
        return await with_report(root, self._node, await answer(root, self._node, query_id))

    async def _run_queued_query(
        self, root: Supervisor, request: QueryAgent, previous: asyncio.Future[Any] | None
    ) -> Reply:
        """Wait until the queries up to `previous` in the queue and any running query have ended, then query the agent.

        Raises AgentDiedError if the orchestrator is closed before the query is sent.
        """
        node = root.tree.agents[self.id]
        if previous is not None:
            await asyncio.wait([previous])
        while (running := node.pending) is not None:
            watcher = root.waiters.watch(QueryTopic(running.query_id))
            try:
                await asyncio.wait([watcher])
            finally:
                watcher.cancel()
        if self._orchestrator._supervisor is not root:
            raise AgentDiedError(
                f"the queued query was not sent to agent {node.spec.name!r} ({node.spec.id}), because the orchestrator "
                "was closed; wait for the future before you close it, or submit the query again"
            )
        return await self._wait_for_reply(ask(root, node, USER, request))

    def _leave_queue(self, place: asyncio.Future[Any]) -> None:
        if self._orchestrator.queued.get(self.id) is place:
            del self._orchestrator.queued[self.id]

    @overload
    async def collect(
        self, *, timeout: float | None = None, again: bool = False, query: str = "", returns: type[T]
    ) -> T | None: ...
    @overload
    async def collect(
        self, *, timeout: float | None = None, again: bool = False, query: str = "", returns: JsonSchema
    ) -> Any: ...
    @overload
    async def collect(
        self, *, timeout: float | None = None, again: bool = False, query: str = "", returns: None = None
    ) -> Reply | None: ...
    async def collect(
        self,
        *,
        timeout: float | None = None,
        again: bool = False,
        query: str = "",
        returns: type[T] | JsonSchema | None = None,
    ) -> Reply | T | None:
        """Return the reply to the last query.

        Each reply is returned once. Return None if the reply does not arrive within `timeout` seconds. Replies to
        queries that were started without waiting (`orch query --no-wait`) are returned first, beginning with the
        oldest. `query` selects a query by its id. With `again`, return a reply that was already taken. Raises
        NoResultError if no such reply exists.

        With `returns`, return the value in the reply; see `query`. If the reply is invalid, the model can correct it
        once, without the time limit.
        """
        expected: ReturnType[T] | None = None if returns is None else return_type(returns)
        try:
            reply = await self._call(COLLECT, Collect(self.id, timeout, again, query))
        except QueryTimeoutError:
            return None
        if expected is None:
            return reply

        def ask(correction: str) -> Awaitable[Reply]:
            # The query may have been submitted without `returns`, so that the model has not seen the schema.
            return self._query(structured_output.prompt_for_value(correction, expected), None, None)

        return (await parse_with_correction(self, reply, expected, ask))[0]

    async def state(self) -> AgentRow:
        """Return the agent's current state. The state includes status, usage, task and model."""
        return await self._call(SHOW_STATE, AgentRef(self.id))

    async def show(self, messages: int = 20) -> AgentShown:
        """Return the agent's state and the end of its transcript. `messages` is the number of messages to return."""
        return await self._call(SHOW_AGENT, ShowAgent(self.id, messages))

    async def prompt_parts(self) -> PromptShown:
        """Return the parts of the prompt for the agent's next request. To get their text, pass them to `render`."""
        return await self._call(SHOW_PROMPT, ShowPrompt(self.id))

    async def ping(self, payload: bytes = b"", *, timeout: float = 10.0) -> None:
        """Send a ping to the agent's process and wait for the answer.

        Raises AgentDiedError if the agent has no process, or if its process does not answer.
        """
        check_seconds(timeout)
        if not isinstance(payload, bytes) or timeout is None:
            raise ConfigError(f"ping needs bytes and a number of seconds; got {payload!r} and {timeout!r}")
        await self._orchestrator.supervisor.ping(self._node, payload, timeout)

    async def steer(self, text: str) -> str:
        """Send a steering message. The agent receives the message before its next model request or with its next query.

        Returns the message's id. `queue.list` shows the message until it is delivered.
        """
        return await self._send_message(text)

    async def follow_up(self, text: str) -> str:
        """Send a message that starts another turn after the current turn. An idle agent starts the turn immediately.

        Returns the id of the message. If the message immediately started a query, returns the id of the query.
        """
        return await self._send_message(text, follow_up=True)

    async def _send_message(self, text: str, *, follow_up: bool = False) -> str:
        queued = await self._call(STEER, SteerAgent(self.id, text, follow_up))
        return queued.steer_id or queued.query_id or ""

    async def revoke_tools(self, *, keep: Iterable[str]) -> None:
        """Permanently revoke all tools except `keep` (names and categories) from this agent and its descendants.

        Tool calls that are already running are completed. Raises ToolNotGrantedError when `keep` names a tool that the
        agent does not have.
        """
        await self._call(REVOKE_TOOLS, RevokeAgentTools(self.id, as_names("keep", keep)))  # type: ignore[arg-type]

    async def set_planning(self, on: bool = True) -> None:
        """Turn plan mode on or off. In plan mode the agent cannot write or run anything until its plan is approved.

        The agent's process is stopped, and its Python state is lost. Raises AgentBusyError while a turn runs. Raises
        ConfigError when an ancestor of the agent is still in plan mode.
        """
        await self._call(SET_PLAN_MODE, SetPlanMode(self.id, on))

    async def merge(self, *, dry_run: bool = False) -> Merged:
        """Merge the agent's worktree into the work tree from which the agent was spawned, and return the changes.

        Uncommitted files of the agent are merged too. With `dry_run`, return the changes and merge nothing. Raises
        WorktreeError for conflicts and when the target work tree has uncommitted changes. In these cases nothing is
        changed. Raises AgentBusyError while a turn runs.
        """
        return await self._call(MERGE, MergeAgent(self.id, dry_run))

    async def cancel(self, *, hard: bool = False) -> None:
        """Cancel the current turn.

        The query of this turn returns with stop reason `cancelled`. With `hard`, kill the agent's process.
        """
        await self._call(CANCEL_TURN, CancelTurn(self.id, hard))

    async def kill(self) -> None:
        """Kill the agent and its descendants.

        Their transcripts are kept. After `resume`, the agent answers queries again.
        """
        await self._call(KILL, Kill((self.id,)))

    async def resume(self, *, max_cost: float | None = None, budget: Budget | None = None) -> None:
        """Let a killed agent answer queries again, and change its limits.

        `max_cost` is the total in USD that the agent may use; `math.inf` removes a limit. `budget` sets other limits.
        """
        await self._call(RESUME, Resume(self.id, budget_change(max_cost, budget)))

    async def commands(self) -> CommandCatalog:
        """Return the slash commands of the agent's session.

        The result contains built-in commands, prompt templates, and commands of extensions.
        """
        return await self._call(LIST_COMMANDS, ShowCommands(self.id))

    async def execute(self, line: str) -> Executed:
        """Execute a slash command, such as "/status", or a shell command, such as "!ls".

        Return the text and the data of the command. Some commands also return an effect; the caller has to apply the
        effect. Raises ConfigError for an unknown command or wrong arguments. Raises the errors of the command.
        """
        return await self._call(EXECUTE_COMMAND, Execute(self.id, line))

    async def set_model(self, model: str) -> str:
        """Continue the conversation with another model. Return the name of that model as `provider:name`.

        `model` is `provider:name` or `local`. The change is an entry of the session. The change survives restarts.
        `checkout` to an earlier entry undoes the change. Raises AgentBusyError while a turn runs. Raises ConfigError
        when the model is unknown, has no key, or is not allowed for this agent.
        """
        changed = await self._call(CHANGE_SESSION, ChangeSession(self.id, SetModel(model)))
        return changed.model or model

    async def set_thinking(self, level: str) -> str:
        """Set the reasoning effort: off, minimal, low, medium, high, xhigh or max. Returns the level in use.

        If the model does not support the level, the next higher supported level is used. If no higher level is
        supported, the next lower level is used. The change is an entry of the session, as with `set_model`. Raises
        AgentBusyError while a turn runs. Raises ConfigError for an unknown level, and for a model without levels.
        """
        changed = await self._call(CHANGE_SESSION, ChangeSession(self.id, SetThinking(level)))
        return changed.thinking or level

    @property
    def _node(self) -> AgentRecord:
        return self._orchestrator._supervisor_of_process.tree.agents[
            self.id
        ]  # `name` and `pid` can be read from any thread

    async def _call(self, service: Service[P, R], params: P) -> R:
        return await self._orchestrator._call(service, params)


async def parse_with_correction(
    agent: AsyncSubagent, reply: Reply, expected: ReturnType[T], ask: Callable[[str], Awaitable[Reply]]
) -> tuple[T, Reply]:
    """Return the value in `reply` together with `reply`. If `reply` is invalid, ask for a correction with `ask` first.

    After a correction, return the new value with the new reply. Raises BadReplyError if both replies are invalid, and
    ConfigError if the agent has no model that could correct the first one.
    """
    try:
        return await agent._parse_reply(reply, expected), reply
    except BadReplyError as error:
        structured_output.check_model(agent._node.model)
        try:
            corrected = await ask(structured_output.prompt_for_correction(error))
        except BackendError as failure:
            message = structured_output.failed_correction(failure, error, reply.text)
            raise type(failure)(message).as_outcome(failure.outcome) from failure
        reply = corrected
    try:
        return await agent._parse_reply(reply, expected), reply
    except BadReplyError as error:
        raise BadReplyError(
            f"agent {agent.name!r} ({agent.id}) did not return a value that matches `returns` in two attempts: "
            f"{error}. Last reply: {reply.text[:200]!r}"
        ) from error


def _mark_retrieved(reply: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved, so that asyncio does not warn.

    Callers may use `collect` instead of the future.
    """
    if not reply.cancelled():
        reply.exception()
