"""Services that query agents: query, submit, collect, wait and ask_all."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orch_protocol.core.errors import (
    AgentNotFoundError,
    BackendError,
    ConfigError,
    ErrorInfo,
    NoResultError,
    OrchError,
    QueryTimeoutError,
    error_from,
)
from orch_protocol.core.ids import new_id
from orch_protocol.core.messages import Image, Reply, check_images
from orch_protocol.core.taint import inherited_labels, join_labels
from orch_protocol.services.agents.query import (
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

from ...policy.caller import AgentCaller, Caller
from ...policy.permissions import AskAgent, ReadReply, check
from ...supervisor.timing.query_deadlines import PATIENCE_SECONDS
from ...tree.agents.state import AgentRecord, QueryResult
from ...tree.agents.wait_graph import check_no_cycle
from ...tree.interface import events
from ...tree.interface.topics import QueryTopic
from ...tree.rules.query_results import available_result, kept_reply, uncollected
from ..archives.archiving import write_texts
from ..archives.recall import find_agent_or_holder, with_passages
from ..checks.local_only import HideErrorDetails, keep_local
from ..checks.reach import find_agent
from ..checks.taint import label_command, labels_from
from ..dispatch.handlers import handles, handles_streaming
from .worktrees import with_report

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor
    from ...supervisor.watchers import Watcher

__all__ = ["answer", "ask", "ask_all", "ask_with_place", "check_prompt", "collect", "query", "submit", "wait"]

MAX_CONCURRENT = 4


@handles_streaming(QUERY)
async def query(root: Supervisor, caller: Caller, params: QueryAgent, watcher: Watcher | None = None) -> Reply:
    """Send a query and wait for the reply.

    If the agent needs a process and the maximum number of agents is alive, the query waits until an agent is idle.
    Raises AgentError. If the reply takes too long, raises QueryTimeoutError, and the agent continues its turn.
    """
    begun = asyncio.get_running_loop().time()
    node, params = await _prepare(root, caller, params)
    user_watcher = watcher if caller.is_user else None
    progress_key = ""
    if user_watcher is not None and params.progress:
        progress_key = new_id()
        root.watchers.watch_branch(progress_key, node.spec.id, user_watcher)
    try:
        with _ErrorsForCaller(root, caller, node):
            if params.item:
                return await with_report(root, node, await _answer_item(root, caller, node, params))
            query_id = await ask_with_place(
                root, node, caller, params, waits=True, watcher=user_watcher if params.stream else None
            )
            if user_watcher is not None and params.approve:
                root.approvals.register_client(query_id, user_watcher)
            try:
                waited = asyncio.get_running_loop().time() - begun
                seconds = max(0.0, params.timeout - waited) if params.timeout is not None else None
                reply = await answer(root, node, query_id, seconds, collector=caller.describe(root.tree.agents))
                if isinstance(caller, AgentCaller):
                    label_command(root, caller, inherited_labels(reply.marks, reply.id))
                return await with_report(root, node, reply)
            finally:
                if user_watcher is not None and params.approve:
                    root.approvals.unregister_client(query_id, user_watcher)
    finally:
        if progress_key:
            root.watchers.stop_watching_branch(progress_key)


async def _answer_item(root: Supervisor, caller: Caller, node: AgentRecord, params: QueryAgent) -> Reply:
    """Return the kept reply to the question `params.item` of a map, or ask it.

    The process of the agent is stopped afterwards, so that it neither uses memory nor takes the place of another agent.
    """
    if (kept := kept_reply(node, params.item)) is not None:
        return kept
    begun = node.pending
    if begun is not None and begun.item == params.item:  # sent by an earlier root, or by another program of the user
        query_id = begun.query_id
    else:
        query_id = await ask_with_place(root, node, caller, params, waits=True, stays=True)
    try:
        return await answer(root, node, query_id, params.timeout)
    except asyncio.CancelledError:
        with contextlib.suppress(OrchError):  # the root is being closed
            root.handle(events.CancelRequested(node.spec.id))
        raise
    finally:
        root.handle(events.StopIfIdle(node.spec.id))


async def ask_with_place(
    root: Supervisor,
    node: AgentRecord,
    caller: Caller,
    params: QueryAgent,
    *,
    waits: bool = False,
    stays: bool = False,
    watcher: Watcher | None = None,
) -> str:
    """Call `ask` as soon as the agent has a process or may get one. Return the query's id.

    Raises QueryTimeoutError if that takes longer than `params.timeout`.
    """
    needs_place = not node.is_holder and not node.alive
    try:
        async with asyncio.timeout(params.timeout):
            return await root.places.request(
                root,
                caller.agent_id,
                lambda: ask(root, node, caller, params, waits=waits, stays=stays, watcher=watcher),
                needs=needs_place,
            )
    except TimeoutError:
        raise QueryTimeoutError(
            f"the query was not sent to agent {node.spec.name!r} ({node.spec.id}): no other agent became idle within "
            f"{params.timeout:g} s, and subagents.max_concurrent is {root.tree.config.max_concurrent}"
        ) from None


@handles(ASK_ALL)
async def ask_all(root: Supervisor, caller: Caller, params: AskAll) -> list[AskAllResult]:
    """Send the same prompt to all agents, and return their replies in the order of `refs`.

    At most 4 agents work at a time. Errors of one agent do not affect the others. Raises ConfigError for empty `refs`.
    """
    if not params.refs:
        raise ConfigError("no agents to query: pass at least one agent or holder")
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def query_one(ref: str) -> AskAllResult:
        async with slots:
            try:
                request = QueryAgent(ref, params.prompt, images=params.images)
                return AskAllResult(ref, await query(root, caller, request))
            except OrchError as error:
                return AskAllResult(ref, error=str(error), exit_code=error.exit_code)

    refs = tuple(dict.fromkeys(params.refs))
    tasks = [asyncio.ensure_future(query_one(ref)) for ref in refs]
    try:
        await asyncio.wait(tasks, timeout=params.timeout)
        timeout_error = (
            f"no answer within {params.timeout:g} s; the turn continues" if params.timeout is not None else ""
        )
        return [
            task.result() if task.done() else AskAllResult(ref, error=timeout_error, exit_code=OrchError.exit_code)
            for ref, task in zip(refs, tasks, strict=True)
        ]
    finally:
        for task in tasks:
            task.cancel()


@handles(SUBMIT)
async def submit(root: Supervisor, caller: Caller, params: QueryAgent) -> Submitted:
    """Send a query and return without waiting for the reply. The service `collect` returns the reply later.

    If the agent needs a process and the maximum number of agents is alive, the call waits until an agent is idle.
    """
    node, params = await _prepare(root, caller, params)
    with _ErrorsForCaller(root, caller, node):
        earlier_results = len(uncollected(node, caller.agent_id))
        return Submitted(node.spec.id, await ask_with_place(root, node, caller, params, stays=True), earlier_results)


@handles(COLLECT)
async def collect(root: Supervisor, caller: Caller, params: Collect) -> Reply:
    """Return a reply of the agent.

    Each reply to a query that the caller submitted is returned once. When there are no more such replies, the last
    reply is returned. With `params.query`, return the reply to that query. Raises QueryTimeoutError while the turn
    runs, and NoResultError if there is no reply.
    """
    node, query = (
        await find_agent_or_holder(root, caller, params.ref, *COLLECT.fields.refs["ref"]),
        params.query,
    )
    available = available_result(node, caller.agent_id, again=params.again, query=query)
    check(root.tree.agents, caller, ReadReply(node, available or node.pending or node.last))
    pending = node.pending if node.pending is not None and query in ("", node.pending.query_id) else None
    if pending is not None and available is None and params.timeout != 0:
        try:
            await answer(root, node, pending.query_id, params.timeout)
        except OrchError:
            pass  # a timeout is raised below; the error of a failed query is collected below
    with _ErrorsForCaller(root, caller, node):
        pending = node.pending if node.pending is not None and query in ("", node.pending.query_id) else None
        available = available_result(node, caller.agent_id, again=params.again, query=query)
        check(root.tree.agents, caller, ReadReply(node, available or node.pending or node.last))
        if pending is not None and available is None:
            raise QueryTimeoutError(f"agent {node.spec.name!r} ({node.spec.id}) is still at work on: {pending.head}")
        result: QueryResult = root.handle(
            events.CollectReply(node.spec.id, caller.describe(root.tree.agents), params.again, caller.agent_id, query)
        )
        reply = _unwrap_result(result)
        if isinstance(caller, AgentCaller):
            label_command(root, caller, inherited_labels(reply.marks, reply.id))
        return await with_report(root, node, reply)


@handles(WAIT)
async def wait(root: Supervisor, caller: Caller, params: Wait) -> Waited:
    """Wait until any agent, all agents, or a number of agents have finished the query that they run now.

    Later queries of these agents are not waited for. A timeout is not an error.
    """
    requested = [find_agent(root, caller, ref, *WAIT.fields.refs["refs"]) for ref in params.refs]
    nodes = list({node.spec.id: node for node in requested}.values())
    if not nodes:
        raise ConfigError("wait needs at least one agent")
    if caller.agent_id in {node.spec.id for node in nodes}:
        raise ConfigError("an agent cannot wait for itself")
    for node in nodes:
        if caller.agent_id is not None:
            check_no_cycle(root.tree.agents.pending.values(), caller.agent_id, node)
    required_count = {"any": 1, "all": len(nodes)}.get(str(params.mode), params.mode)
    if not isinstance(required_count, int) or not 1 <= required_count <= len(nodes):
        raise ConfigError(f"invalid mode {params.mode!r} for {len(nodes)} agents: use any, all, or a number of agents")
    loop = asyncio.get_running_loop()
    seconds = max(node.spec.limits.turn_seconds for node in nodes) if params.timeout is None else params.timeout
    deadline = loop.time() + seconds
    watchers = {
        node.spec.id: root.waiters.watch(QueryTopic(node.pending.query_id))
        for node in nodes
        if node.pending is not None
    }
    try:
        while True:
            pending = {id: watcher for id, watcher in watchers.items() if not watcher.done()}
            remaining_seconds = deadline - loop.time()
            if len(nodes) - len(pending) >= required_count or not pending or remaining_seconds <= 0:
                break
            await asyncio.wait(pending.values(), timeout=remaining_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for watcher in watchers.values():
            watcher.cancel()
    return Waited(tuple(node.spec.id for node in nodes if node.spec.id not in pending), tuple(pending))


async def answer(
    root: Supervisor, node: AgentRecord, query_id: str, seconds: float | None = None, *, collector: str | None = None
) -> Reply:
    """Wait at most `seconds` for a query's reply.

    `collector` is the caller that receives the reply. If it is None, the service `collect` can return the reply later.
    """
    if node.pending is None or node.pending.query_id != query_id:
        return _finished_reply(node, query_id)
    seconds = node.spec.limits.turn_seconds + PATIENCE_SECONDS if seconds is None else seconds
    try:
        reply: Reply = await root.waiters.until(QueryTopic(query_id), seconds, collector)
    except TimeoutError:
        raise QueryTimeoutError(
            f"agent {node.spec.name!r} ({node.spec.id}) has not answered within {seconds:g} s; "
            f"the turn continues; `orch collect {node.spec.seq}` returns the answer later"
        ) from None
    return reply


class _ErrorsForCaller:
    """Context manager that adapts errors of the agent `node` to the caller that receives them.

    For the user, a provider error gets a hint, for example about a refused API key. For an agent, details of local-only
    content are removed.
    """

    __slots__ = ("_caller", "_node", "_root")

    def __init__(self, root: Supervisor, caller: Caller, node: AgentRecord) -> None:
        self._root, self._caller, self._node = root, caller, node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        if not self._caller.is_user:
            HideErrorDetails(self._root, self._caller, self._node).__exit__(kind, error, traceback)
        elif isinstance(error, BackendError) and (hint := self._root.credentials.hint(self._node, error)):
            raise error_from(ErrorInfo(type(error).__name__, f"{error}; {hint}")) from None


def check_prompt(node: AgentRecord, prompt: object, images: tuple[Image, ...] = ()) -> None:
    """Raise ConfigError if `prompt` is not a string or is empty, or if a provider would reject `images`."""
    if not isinstance(prompt, str):
        raise ConfigError(f"the prompt for agent {node.spec.name!r} must be text; got {type(prompt).__name__}")
    if not prompt.strip():
        raise ConfigError(f"the prompt for agent {node.spec.name!r} is empty: write a task or question")
    check_images(images)


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
    """Send the query to `node` and return the query's id.

    With `waits`, the caller blocks until the reply arrives. With `stays`, the reply is kept until a caller collects it.
    """
    check_prompt(node, params.prompt, params.images)
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
        images=params.images,
        item=params.item,
    )


async def _pass_on_taint(root: Supervisor, caller: Caller, node: AgentRecord) -> None:
    """Add the taint labels of the caller's conversation to the agent `node`, which is about to be queried."""
    if not isinstance(caller, AgentCaller):
        return  # The user has no labels.
    labels = await labels_from(root, caller)
    if join_labels(node.spec.marks, labels) != node.spec.marks:
        root.handle(events.AddTaint(node.spec.id, labels))


async def _prepare(root: Supervisor, caller: Caller, params: QueryAgent) -> tuple[AgentRecord, QueryAgent]:
    """Return the agent or holder to query, and the query with all additions to its prompt.

    Raises AgentError or ToolNotGrantedError if the caller may not query the agent.
    """
    reach = QUERY.fields.refs["ref"]
    try:
        node = find_agent(root, caller, params.ref, *reach)
    except AgentNotFoundError:
        node = None
    if node is None or node.is_holder:  # an archive has no holder before its first query
        node = await find_agent_or_holder(root, caller, params.ref, *reach)
    if not caller.is_user:
        check(root.tree.agents, caller, AskAgent(node))
    if node.spec.source is not None:
        params = replace(params, prompt=await with_passages(root, node, params.prompt))
    if node.spec.source is not None or not caller.is_user:
        await keep_local(root, caller, node)
    if node.archives:
        await write_texts(root, node, missing_only=True)
    await _pass_on_taint(root, caller, node)
    return node, params


def _finished_reply(node: AgentRecord, query_id: str) -> Reply:
    """Return the reply of a finished query. If the query failed, raise its error."""
    if node.last is None or node.last.query_id != query_id:
        raise NoResultError(f"the answer of agent {node.spec.name!r} to that query was replaced by a later answer")
    return _unwrap_result(node.last)


def _unwrap_result(result: QueryResult) -> Reply:
    if result.error is not None:
        raise error_from(result.error)
    assert result.reply is not None
    return result.reply
