"""Questions to agents and their answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.core.errors import (
    AgentError,
    BackendError,
    ConfigError,
    ErrorInfo,
    NoResultError,
    OrchError,
    QueryTimeoutError,
    error_from,
)
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Reply
from orch_protocol.core.taint import TaintLabel, inherited_labels, join_labels
from orch_protocol.services.requests import (
    ASK_ALL,
    COLLECT,
    QUERY,
    SUBMIT,
    WAIT,
    AskAll,
    AskAllResult,
    Collect,
    QueryAgent,
    Submitted,
    Wait,
    Waited,
)

from ...policy.caller import Caller, is_below
from ...supervisor.timing.query_deadlines import PATIENCE_SECONDS
from ...tree.agents.state import AgentRecord, QueryResult
from ...tree.agents.wait_graph import check_no_cycle
from ...tree.journal import events
from ...tree.journal.entries import QueryStarted
from ...tree.rules.query_results import available_result, uncollected
from ..archives.recall import find_agent_or_holder, with_passages
from ..checks.local_only import HideErrorDetails, keep_local
from ..checks.reach import check_recall, find_agent
from ..dispatch.handlers import handles, handles_streaming

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor
    from ...supervisor.watchers import Watcher

__all__ = ["answer", "ask", "ask_all", "collect", "query", "submit", "wait"]

MOST_AT_ONCE = 4


@handles_streaming(QUERY)
async def query(root: Supervisor, caller: Caller, params: QueryAgent, watcher: Watcher | None = None) -> Reply:
    """Ask and wait for the answer. Raises AgentError; after QueryTimeoutError the agent works on."""
    node = await _find_queried_agent(root, caller, params.ref)
    params = replace(params, prompt=await with_passages(root, node, params.prompt))
    await keep_local(root, caller, node)
    _pass_on_taint(root, caller, node, params.marks)
    heard = watcher if caller.is_user else None
    key = ""
    if heard is not None and params.progress:
        key = new_id()
        root.watchers.follow(key, node.spec.id, heard)
    try:
        with CredentialHint(root, caller, node), HideErrorDetails(root, caller, node):
            query_id = ask(root, node, caller, params, waits=True, watcher=heard if params.stream else None)
            if heard is not None and params.approve:
                root.approvals.attend(query_id, heard)
            try:
                return await answer(root, node, query_id, params.timeout, taker=caller.describe(root.tree.agents))
            finally:
                if heard is not None and params.approve:
                    root.approvals.leave(query_id, heard)
    finally:
        root.watchers.unfollow(key)


@handles(ASK_ALL)
async def ask_all(root: Supervisor, caller: Caller, params: AskAll) -> list[AskAllResult]:
    """Ask all of the agents the same, some at a time, each once; return what they said, in the order they were named.

    Who cannot answer costs the others nothing. Raises ConfigError when nobody is asked.
    """
    if not params.refs:
        raise ConfigError("no agents to query: pass at least one agent or holder")
    turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def one(ref: str) -> AskAllResult:
        async with turns:
            try:
                return AskAllResult(ref, await query(root, caller, QueryAgent(ref, params.prompt, marks=params.marks)))
            except OrchError as error:
                return AskAllResult(ref, error=str(error))

    refs = tuple(dict.fromkeys(params.refs))
    tasks = [asyncio.ensure_future(one(ref)) for ref in refs]
    try:
        await asyncio.wait(tasks, timeout=params.timeout)
        late = f"no answer within {params.timeout:g} s; it works on" if params.timeout is not None else ""
        return [
            task.result() if task.done() else AskAllResult(ref, error=late)
            for ref, task in zip(refs, tasks, strict=True)
        ]
    finally:
        for task in tasks:
            task.cancel()


@handles(SUBMIT)
async def submit(root: Supervisor, caller: Caller, params: QueryAgent) -> Submitted:
    """Ask and return at once; `collect` takes the answer."""
    node = await _find_queried_agent(root, caller, params.ref)
    params = replace(params, prompt=await with_passages(root, node, params.prompt))
    await keep_local(root, caller, node)
    _pass_on_taint(root, caller, node, params.marks)
    with HideErrorDetails(root, caller, node):
        before = len(uncollected(node, caller.agent_id))
        return Submitted(node.spec.id, ask(root, node, caller, params, stays=True), before)


@handles(COLLECT)
async def collect(root: Supervisor, caller: Caller, params: Collect) -> Reply:
    """Take an answer, once: that of the last query, but first those to queries that the caller submitted before it.

    With `params.query` it is the answer to that query. Raises QueryTimeoutError while it is not there, NoResultError
    later.
    """
    node, query = await find_agent_or_holder(root, caller, params.ref, "collect from", "ask"), params.query
    waiting = available_result(node, caller.agent_id, again=params.again, query=query)
    _check_own_answer(root, caller, node, waiting or node.pending or node.last)
    pending = node.pending if node.pending is not None and query in ("", node.pending.query_id) else None
    if pending is not None and waiting is None and params.timeout != 0:
        try:
            await answer(root, node, pending.query_id, params.timeout)
        except OrchError:
            pass  # out of time, which is told below, or failed, which is the answer to collect
    with CredentialHint(root, caller, node), HideErrorDetails(root, caller, node):
        pending = node.pending if node.pending is not None and query in ("", node.pending.query_id) else None
        waiting = available_result(node, caller.agent_id, again=params.again, query=query)
        _check_own_answer(root, caller, node, waiting or node.pending or node.last)
        if pending is not None and waiting is None:
            raise QueryTimeoutError(f"agent {node.spec.name!r} ({node.spec.id}) is still at work on: {pending.head}")
        result: QueryResult = root.handle(
            events.CollectReply(node.spec.id, caller.describe(root.tree.agents), params.again, caller.agent_id, query)
        )
        return _reply(result)


@handles(WAIT)
async def wait(root: Supervisor, caller: Caller, params: Wait) -> Waited:
    """Wait until any, all or so many of the agents are not busy, or the time is over; never raises for the time."""
    named = [find_agent(root, caller, ref, "wait for", "ask") for ref in params.refs]
    nodes = list({node.spec.id: node for node in named}.values())
    if not nodes:
        raise ConfigError("wait needs at least one agent")
    if caller.agent_id in {node.spec.id for node in nodes}:
        raise ConfigError("an agent cannot wait for itself")
    for node in nodes:
        if caller.agent_id is not None:
            check_no_cycle(root.tree.agents.pending.values(), caller.agent_id, node)
    wanted = {"any": 1, "all": len(nodes)}.get(str(params.mode), params.mode)
    if not isinstance(wanted, int) or not 1 <= wanted <= len(nodes):
        raise ConfigError(f"invalid mode {params.mode!r} for {len(nodes)} agents: use any, all, or a number of agents")
    loop = asyncio.get_running_loop()
    seconds = max(node.spec.limits.turn_seconds for node in nodes) if params.timeout is None else params.timeout
    deadline = loop.time() + seconds
    watchers = {
        node.spec.id: root.waiters.watch(f"query:{node.pending.query_id}") for node in nodes if node.pending is not None
    }
    try:
        while True:
            pending = {id: watcher for id, watcher in watchers.items() if not watcher.done()}
            left = deadline - loop.time()
            if len(nodes) - len(pending) >= wanted or not pending or left <= 0:
                break
            await asyncio.wait(pending.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watcher in watchers.values():
            watcher.cancel()
    return Waited(
        tuple(node.spec.id for node in nodes if node.pending is None),
        tuple(node.spec.id for node in nodes if node.pending is not None),
    )


async def answer(
    root: Supervisor, node: AgentRecord, query_id: str, seconds: float | None = None, *, taker: str | None = None
) -> Reply:
    """Wait for a query's reply, at most `seconds`; `taker` names who gets it, None leaves it to collect."""
    if node.pending is None or node.pending.query_id != query_id:
        return _answered(node, query_id)
    seconds = node.spec.limits.turn_seconds + PATIENCE_SECONDS if seconds is None else seconds
    try:
        reply: Reply = await root.waiters.until(f"query:{query_id}", seconds, taker)
    except TimeoutError:
        raise QueryTimeoutError(
            f"agent {node.spec.name!r} ({node.spec.id}) has not answered within {seconds:g} s; "
            f"it works on: `orch collect {node.spec.seq}` takes the answer later"
        ) from None
    return reply


class CredentialHint:
    """Adds to errors of the agent's provider what the caller can do about a refused key."""

    __slots__ = ("_caller", "_node", "_root")

    def __init__(self, root: Supervisor, caller: Caller, node: AgentRecord) -> None:
        self._root, self._caller, self._node = root, caller, node

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, BackendError) or not self._caller.is_user:
            return
        if hint := self._root.credentials.hint(self._node, error):
            raise error_from(ErrorInfo(type(error).__name__, f"{error}; {hint}")) from None


def ask(
    root: Supervisor,
    node: AgentRecord,
    caller: Caller,
    params: QueryAgent,
    *,
    waits: bool = False,
    stays: bool = False,
    watcher: Watcher | None = None,
) -> str:
    """Put the query to `node` and return its id; `waits` says that `caller` will block until the answer, `stays` that
    the answer is there until somebody collects it."""
    if not isinstance(params.prompt, str):
        raise ConfigError(f"the prompt for agent {node.spec.name!r} is text, not {type(params.prompt).__name__}")
    if not params.prompt.strip():
        raise ConfigError(f"the prompt for agent {node.spec.name!r} is empty: write a task or question")
    if params.wake is not None and caller.is_user:
        raise ConfigError("`wake` is for agents: the user's program waits with `wait` or the future")
    return root.ask(
        node,
        params.prompt,
        asker=caller.agent_id,
        waits=waits,
        wake=params.wake,
        request_id=params.request_id,
        stays=stays,
        watcher=watcher,
    )


def _pass_on_taint(root: Supervisor, caller: Caller, node: AgentRecord, marks: tuple[TaintLabel, ...]) -> None:
    """Let `node` have what the conversation holds in which the caller thought of the question, before it is asked."""
    over = inherited_labels(marks, caller.agent_id or "")
    if join_labels(node.spec.marks, over) != node.spec.marks:
        root.handle(events.AddTaint(node.spec.id, over))


async def _find_queried_agent(root: Supervisor, caller: Caller, ref: str) -> AgentRecord:
    """Return the agent or holder that the caller asks. Raises AgentError, ToolNotGrantedError when it may not."""
    node = await find_agent_or_holder(root, caller, ref, "query", "ask")
    check_recall(root, caller, node)
    _check_plan(root, caller, node)
    return node


def _check_own_answer(
    root: Supervisor, caller: Caller, node: AgentRecord, answer: QueryResult | QueryStarted | None
) -> None:
    """Raise AgentError when `answer` of `node` is not to the caller, nor `node` below it: of a peer, or an archive that
    it was handed, it takes answers to its own queries only."""
    agent = caller.find_agent(root.tree.agents)
    if agent is None or is_below(root.tree.agents, agent.spec.id, node.spec.id):
        return
    if answer is None or answer.asker != agent.spec.id:
        raise AgentError(
            f"agent {agent.spec.name!r} can only collect its own queries from {node.spec.name!r}: submit a query first"
        )


def _check_plan(root: Supervisor, caller: Caller, node: AgentRecord) -> None:
    """Raise AgentError when the caller is in plan mode and `node` is not: it would do what the caller may not."""
    asker = caller.find_agent(root.tree.agents)
    if asker is not None and asker.spec.plan and not node.spec.plan and not node.is_holder:
        raise AgentError(
            f"agent {asker.spec.name!r} is in plan mode and may ask those alone who are too; {node.spec.name!r} is not"
        )


def _answered(node: AgentRecord, query_id: str) -> Reply:
    """Return the reply that settled a query already, or raise its error."""
    if node.last is None or node.last.query_id != query_id:
        raise NoResultError(f"the answer of agent {node.spec.name!r} to that query gave way to a later one")
    return _reply(node.last)


def _reply(result: QueryResult) -> Reply:
    if result.error is not None:
        raise error_from(result.error)
    assert result.reply is not None
    return result.reply
