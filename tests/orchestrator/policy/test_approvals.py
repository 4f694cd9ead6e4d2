"""Approvals: who is asked, which answers count, and which later calls an answer covers."""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch import AgentOptions, ApprovalConfig, Config, Consent, PolicyConfig, Question, ScriptedBackend, SubagentsConfig
from orch.policy.approvals import NO_APPROVER, ApprovalBroker
from orch.policy.caller import USER, AgentCaller
from orch.policy.grants import GrantStore, covers, grant_of
from orch.services import call
from orch_protocol.core.errors import ConfigError, EntryNotFoundError
from orch_protocol.core.text import plain_line
from orch_protocol.services.agents.query import QUERY, QueryAgent
from orch_protocol.services.agents.spawn import SPAWN, Spawn
from orch_protocol.services.policy.approvals import ANSWER_APPROVAL, AnswerQuestion, AnswerResult
from orchestrator.root_double import NEST, opened
from virtual_clock import virtual


def question(id: str = "q1", **changes: Any) -> Question:
    """Return a question about the command `rm x`."""
    fields: dict[str, Any] = {"tool": "bash", "subject": "rm x", "input": {"command": "rm x"}, "digest": "d1"}
    fields |= {"paths": (), "reason": "why", "folder": "/w", "agent": "n", "agent_id": "a", "task": "t", "depth": 1}
    return Question(id=id, **(fields | changes))


@virtual
async def test_call_without_an_approver_is_denied_at_once(tmp_path: Path) -> None:
    """Without a client and an approver, the broker denies the call without waiting."""
    before = asyncio.get_running_loop().time()
    assert "there is no one to ask" in await ApprovalBroker(tmp_path).ask(question(), "a", None, 100)
    assert asyncio.get_running_loop().time() == before


@pytest.mark.parametrize("expected", [True, Consent(True)])
@virtual
async def test_approver_returns_true_or_a_consent(tmp_path: Path, expected: Any) -> None:
    """An async approver allows the call by returning True or a Consent with `allow=True`."""

    async def approve(_: Question) -> Any:
        return expected

    assert await ApprovalBroker(tmp_path, approve).ask(question(), "a", None, 100) == ""


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        *(
            (False, "the user denied it"),
            (None, "got NoneType"),
            (1, "got int"),
            (Consent("no"), "an invalid Consent"),  # type: ignore[arg-type]
            (Consent(True, "project", seconds=math.nan), "an invalid Consent: seconds is nan"),
            (Consent(True, "ever"), "an invalid Consent"),  # type: ignore[arg-type]
            (KeyError("k"), "KeyError: 'k'"),
        ),
        (asyncio.CancelledError(), "failed: CancelledError"),
    ],
)
@virtual
async def test_anything_but_a_clear_yes_denies(tmp_path: Path, expected: Any, why: str) -> None:
    """False, None, other types, exceptions and a cancellation deny the call, with a reason."""

    async def approve(_: Question) -> Any:
        if isinstance(expected, BaseException):
            raise expected
        return expected

    assert why in await ApprovalBroker(tmp_path, approve).ask(question(), "a", None, 100)


@pytest.mark.parametrize("raised", [SystemExit(3), StopIteration(), KeyboardInterrupt()])
async def test_sync_approver_raising_system_exit_ends_its_thread_only(tmp_path: Path, raised: BaseException) -> None:
    """Only this call is denied. The program continues."""

    def approve(_: Question) -> bool:
        raise raised

    assert type(raised).__name__ in await ApprovalBroker(tmp_path, approve).ask(question(), "a", None, 100)


async def test_approver_runs_in_the_programs_context(tmp_path: Path) -> None:
    """A synchronous approver, which runs in a thread, sees the context variables of its program."""
    user = ContextVar("user", default="none")
    user.set("alice")
    assert await ApprovalBroker(tmp_path, lambda _: user.get() == "alice").ask(question(), "a", None, 100) == ""


@virtual
async def test_unanswered_question_is_denied_at_its_deadline(tmp_path: Path) -> None:
    """A later answer does not count."""
    asked: list[Question] = []
    approvals = ApprovalBroker(tmp_path)
    approvals.register_client("q", asked.append)
    assert "within 5 s" in await approvals.ask(question(), "a", "q", 5)
    late = approvals.answer(AnswerQuestion("q1", True))
    assert (late.taken, late.note) == (False, "no answer in time")


@virtual
async def test_client_that_could_not_ask_denies_like_a_missing_one(tmp_path: Path) -> None:
    """The call is denied with the same reason as a call without a client."""
    approvals = ApprovalBroker(tmp_path)
    approvals.register_client("q", lambda _: None)
    asking = asyncio.create_task(approvals.ask(question(), "a", "q", 5))
    await asyncio.sleep(0)
    assert approvals.answer(AnswerQuestion("q1", True, unasked=True)).taken
    assert await asking == NO_APPROVER


def test_denied_calls_are_counted_once_per_query(tmp_path: Path) -> None:
    """The count of a query starts again at zero after it is read."""
    approvals = ApprovalBroker(tmp_path)
    approvals.count_denied(["parent", "child"])
    approvals.count_denied(["parent"])
    assert [approvals.take_denied(id) for id in ("parent", "child", "parent")] == [2, 1, 0]


@virtual
async def test_first_answer_counts(tmp_path: Path) -> None:
    """The broker refuses an invalid consent and later answers."""
    approvals = ApprovalBroker(tmp_path)
    approvals.register_client("q", lambda _: None)
    asking = asyncio.create_task(approvals.ask(question(), "a", "q", 5))
    await asyncio.sleep(0)
    assert not approvals.answer(AnswerQuestion("q1", True, "project", seconds=math.nan)).taken  # NaN would never expire
    assert approvals.answer(AnswerQuestion("q1", False)) == AnswerResult(True)
    assert not approvals.answer(AnswerQuestion("q1", True)).taken
    assert await asking == "the user denied it"
    assert not approvals.answer(AnswerQuestion("other", True)).taken


@virtual
async def test_disconnecting_client_denies_its_questions(tmp_path: Path) -> None:
    """When the asked client disconnects, its question is denied."""
    approvals = ApprovalBroker(tmp_path)
    asked: list[Question] = []
    approvals.register_client("q", asked.append)
    asking = asyncio.create_task(approvals.ask(question(), "a", "q", 500))
    await asyncio.sleep(0)
    approvals.unregister_client("q", asked.append)
    assert await asking == "the client that was asked has disconnected"


@virtual
async def test_question_waits_for_a_returning_client(tmp_path: Path) -> None:
    """The client that connects next is asked. The reason of its denial reaches the agent."""
    first: list[Question] = []
    second: list[Question] = []
    approvals = ApprovalBroker(tmp_path)
    approvals.register_client("agent", first.append)
    asking = asyncio.create_task(approvals.ask(question(), "a", "agent", 500))
    await asyncio.sleep(0)
    approvals.unregister_client("agent", first.append, will_reconnect=True)
    assert not approvals.has_client("agent")
    approvals.register_client("agent", second.append)
    assert first == second != []
    assert approvals.answer(AnswerQuestion("q1", False, reason="not on a Friday")).taken
    assert await asking == "the user denied it: not on a Friday"


@virtual
async def test_question_stays_while_one_client_is_connected(tmp_path: Path) -> None:
    """Two clients are asked. After one disconnects, the answer of the other one counts."""
    first: list[Question] = []
    second: list[Question] = []
    approvals = ApprovalBroker(tmp_path)
    approvals.register_client("q", first.append)
    approvals.register_client("q", second.append)
    asking = asyncio.create_task(approvals.ask(question(), "a", "q", 500))
    await asyncio.sleep(0)
    assert first == second != []
    approvals.unregister_client("q", first.append)
    assert approvals.answer(AnswerQuestion("q1", True)).taken
    assert await asking == ""


class TestLater:
    """Later calls that an approval covers."""

    @virtual
    async def test_session_approval_covers_one_agent_tree(self, tmp_path: Path) -> None:
        """An approval for the session covers the same call of the agents below the same top-level agent."""
        asked: list[Question] = []

        async def approve(each: Question) -> Consent:
            asked.append(each)
            return Consent(True, "session")

        approvals = ApprovalBroker(tmp_path, approve)
        for id, session, digest in (("1", "a", "d1"), ("2", "a", "d1"), ("3", "b", "d1"), ("4", "a", "d2")):
            assert await approvals.ask(question(id, digest=digest), session, None, 5) == ""
        assert [each.id for each in asked] == ["1", "3", "4"]

    @virtual
    async def test_project_approval_covers_a_folder_until_it_expires(self, tmp_path: Path) -> None:
        """An approval for a project covers its folder in every root until it expires or is revoked."""
        now = [1000.0]

        async def approve(_: Question) -> Consent:
            return Consent(True, "project", seconds=50)

        assert await ApprovalBroker(tmp_path, approve, lambda: now[0]).ask(question(), "a", None, 5) == ""
        another = ApprovalBroker(tmp_path, clock=lambda: now[0])
        assert await another.ask(question(), "b", None, 5) == ""
        assert await another.ask(question(folder="/v"), "b", None, 5) != ""
        now[0] += 50
        assert await another.ask(question(), "b", None, 5) != ""
        now[0] -= 1
        (taken,) = another.revoke(None, "/w")
        assert (taken.tool, taken.subject, taken.scope) == ("bash", "rm x", "project")
        assert await another.ask(question(), "b", None, 5) != ""
        with pytest.raises(EntryNotFoundError, match="no permission"):
            another.revoke([taken.id])

    @virtual
    async def test_approvals_are_listed_and_revoked(self, tmp_path: Path) -> None:
        """Approvals of sessions and projects are listed with their expiry. After a revocation, the next call is
        asked."""
        now = [1000.0]
        says = [Consent(True, "session", seconds=50), Consent(True, "session"), Consent(True, "project", "git *")]

        async def approve(_: Question) -> Consent:
            return says.pop(0)

        approvals = ApprovalBroker(tmp_path, approve, lambda: now[0])
        for id, digest, session in (("1", "d1", "a"), ("2", "d2", "b"), ("3", "d3", "b")):
            assert await approvals.ask(question(id, digest=digest), session, None, 5) == ""
        listed = [(each.scope, each.exactly, each.expires_at, each.agent_id) for each in approvals.permissions("/w")]
        project = ("project", False, 1000.0 + 90 * 86400, "")
        assert listed == [project, ("session", True, 1050.0, "a"), ("session", True, None, "b")]
        assert approvals.permissions("/v") == []
        now[0] += 50
        git, second = approvals.permissions()
        assert await approvals.ask(question("4", digest="d2"), "b", None, 5) == ""
        with pytest.raises(EntryNotFoundError, match="no permission with id x"):
            approvals.revoke([second.id, "x"])
        assert approvals.revoke([second.id]) == [second]
        says.append(Consent(False))
        assert await approvals.ask(question("5", digest="d2"), "b", None, 5) == "the user denied it"
        assert [each.id for each in approvals.revoke(None)][:1] == [git.id]
        assert approvals.permissions() == []

    @pytest.mark.parametrize(
        ("subject", "covered"),
        [("git log", True), ("git log; rm x", False), ("git log\nrm x", False), ("git $(rm x)", False), ("got", False)],
    )
    def test_pattern_covers_simple_commands_only(self, subject: str, covered: bool) -> None:
        """A pattern covers neither compound commands nor local-only calls nor other tools."""
        grant = grant_of(question(), Consent(True, "project", "git *"), 0.0)
        assert covers(grant, question(subject=subject, digest="other"), 1.0) is covered
        assert not covers(grant, question(subject=subject, digest="other", local=True), 1.0)
        assert not covers(grant, question(subject=subject, digest="other", tool="own"), 1.0)

    def test_damaged_permission_file_is_an_error(self, tmp_path: Path) -> None:
        """Reading it raises ConfigError and grants nothing."""
        (tmp_path / "permissions.json").write_text("{")
        with pytest.raises(ConfigError, match="remove the file"):
            GrantStore(tmp_path).of()


@given(st.text(max_size=60))
def test_question_text_cannot_forge_a_line(text: str) -> None:
    """Each line of a question has a known name and contains only printable characters."""
    lines = question(agent=text, task=text, subject=text, reason=text, folder=text).with_lines().lines
    names = [line.partition(":")[0] for line in lines]
    assert names == ["agent", "task", "tool", "wants", "in", "reason"]
    assert all(line.isprintable() for line in lines)


def test_hidden_characters_of_a_question_are_visible() -> None:
    """Line ends, escape sequences and direction marks are escaped, and a long text is truncated."""
    assert plain_line("a\nb\x1b[2K\u202ec\u2028", 40) == "a\\nb\\x1b[2K\\u202ec\\u2028"
    assert plain_line("x" * 50, 10) == "xxxxxxx..."
    assert len(plain_line("\n" * 10, 10)) <= 10


RM = {"tool": "bash", "input": {"command": "rm precious.txt"}}


async def test_reply_counts_denied_calls_of_the_agent_and_of_its_subagents(tmp_path: Path) -> None:
    """Without an approver, the count includes denied calls of subagents during the query."""
    asks = {"tool": "query_subagent", "input": {"id": "child", "prompt": "go"}}
    config = Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(approval_mode="ask"))
    async with opened(tmp_path / "home", config=config) as world:
        parent = await world.scripted(asks, RM, "told", "again", tools=["bash", *NEST], cwd=tmp_path)
        script = (RM, RM, "no", RM, "no")
        spawn = Spawn("tidy", name="child", tools=("bash",), script=script)
        child = await world.get((await call(world.supervisor, AgentCaller(parent.id), SPAWN, spawn)).id)
        assert (await parent.query("go")).denied == 3
        assert (await parent.query("and again")).denied == 0
        assert (await child.query("and you")).denied == 1


@pytest.mark.parametrize(("allow", "left"), [(True, False), (False, True)])
async def test_call_of_a_grandchild_is_asked_at_the_root(tmp_path: Path, allow: bool, left: bool) -> None:
    """The question contains the name, task, command and folder of the agent. The answer decides only about this
    call."""
    (tmp_path / "precious.txt").write_text("x")
    asked: list[Question] = []

    async def approve(each: Question) -> bool:
        asked.append(each)
        return allow

    config = Config(
        subagents=SubagentsConfig(allow_nested=True),
        policy=PolicyConfig(approval_mode="ask"),
    )
    async with opened(tmp_path / "home", config=config, approve=approve) as world:
        agent = await world.scripted("-", tools=["bash", *NEST], cwd=tmp_path)
        below = agent.id
        for _ in range(2):
            spawn = Spawn("tidy\nagent: the user", tools=("bash", *NEST), script=(RM, "done"))
            below = (await call(world.supervisor, AgentCaller(below), SPAWN, spawn)).id
        reply = await (await world.get(below)).query("tidy up")
        assert (reply.text, reply.tool_calls) == ("done", int(allow))
        assert (tmp_path / "precious.txt").exists() is left
        (only,) = asked
        assert (only.depth, only.tool, only.subject, Path(only.folder).name) == (
            3,
            "bash",
            "rm precious.txt",
            tmp_path.name,
        )
        assert "task: tidy\\nagent: the user" in only.lines


@virtual
async def test_session_approval_is_listed_until_its_agent_ends(tmp_path: Path) -> None:
    """After its revocation, the next call is asked again."""
    asked: list[Question] = []

    async def approve(each: Question) -> Consent:
        asked.append(each)
        return Consent(True, "session")

    config = Config(policy=PolicyConfig(permissions={"list_files": "ask"}))
    look = {"tool": "list_files", "input": {}}
    async with opened(tmp_path / "home", config=config, approve=approve) as world:
        agent = await world.scripted(*[look, "done"] * 3, tools=["list_files"], cwd=tmp_path)
        for _ in range(2):
            await agent.query("look")
        (held,) = await world.permissions.list()
        assert (held.scope, held.agent_id, held.tool, len(asked)) == ("session", agent.id, "list_files", 1)
        assert await world.permissions.list("/elsewhere") == []
        assert await world.permissions.revoke(held.id) == [held]
        await agent.query("look")
        assert (len(asked), len(await world.permissions.list())) == (2, 1)
        await agent.kill()
        assert await world.permissions.list() == []


async def test_client_waiting_for_the_ancestor_is_asked(tmp_path: Path) -> None:
    """The client that queries an agent is asked about its calls, and the client's answer counts."""
    (tmp_path / "precious.txt").write_text("x")
    config = Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(approval_mode="ask"))
    async with opened(tmp_path / "home", config=config) as world:
        root = world.supervisor
        seen: list[Question] = []

        def client(event: Any) -> None:
            seen.append(event)
            found = AnswerQuestion(event.id, allow=True)
            tasks.append(asyncio.ensure_future(call(root, USER, ANSWER_APPROVAL, found)))

        tasks: list[asyncio.Future[Any]] = []
        agent = await world.scripted(RM, "done", tools=["bash"], cwd=tmp_path)
        reply = await call(root, USER, QUERY, QueryAgent(agent.id, "tidy", approve=True), client)
        assert (reply.text, [await task for task in tasks]) == ("done", [AnswerResult(True)])
        assert [each.kind for each in seen] == ["question"]
        assert not (tmp_path / "precious.txt").exists()


def test_pattern_does_not_cover_credentials() -> None:
    """An approval of exactly that call covers its credentials."""
    pattern = grant_of(question(), Consent(True, "session", "rm *"), 0.0)
    asking = question(input={"command": "rm x", "credentials": True})
    assert covers(pattern, question(), 1.0)
    assert not covers(pattern, asking, 1.0)
    assert covers(grant_of(asking, Consent(True, "session"), 0.0), asking, 1.0)


def test_question_names_all_credentials_that_the_call_can_read() -> None:
    """The line is complete, also if there are many paths. No pattern covers such a question."""
    paths = (*(f"/h/u/{number:03}/.ssh" for number in range(100)), "/h/u/a\nb")
    asked = question(credentials=paths).with_lines()
    assert asked.lines[-1] == "credentials: the call can read " + ", ".join([*paths[:-1], r"/h/u/a\nb"])
    assert not any("credentials" in line for line in question().with_lines().lines)
    pattern = grant_of(question(), Consent(True, "session", "rm *"), 0.0)
    assert covers(pattern, question(), 1.0)
    assert not covers(pattern, asked, 1.0)


@pytest.mark.parametrize(
    ("of_orchestrator", "of_agent", "channel", "asked"),
    [
        (False, False, "program", False),
        (True, False, "program", True),
        (False, True, "program", True),
        (False, False, "person", True),
    ],
    ids=["none", "orchestrator", "agent", "config"],
)
async def test_personal_data_and_code_need_approval_where_a_person_approves(
    tmp_path: Path, of_orchestrator: bool, of_agent: bool, channel: Literal["program", "person"], asked: bool
) -> None:
    """Subagents need approval, too. Other calls of the same tool run without approval."""
    for folder in ("mine", "code", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_text("x")
    policy = PolicyConfig(
        personal_paths=(str(tmp_path / "mine"),), code_paths=(str(tmp_path / "code"),), no_local_model="ask"
    )
    config = Config(
        subagents=SubagentsConfig(allow_nested=True), policy=policy, approval=ApprovalConfig(channel=channel)
    )
    approve = (lambda _: False) if of_orchestrator else None
    script = [
        *({"tool": "write_file", "input": {"path": f"{name}/a", "content": "y"}} for name in ("other", "code")),
        {"tool": "read_file", "input": {"path": "mine/a"}},
        "done",
    ]
    tools = ("read_file", "write_file", *NEST)
    async with opened(tmp_path / "home", config=config, approve=approve) as world:
        options: AgentOptions = {"tools": tools, "cwd": tmp_path, "approve": (lambda _: False) if of_agent else None}
        agent = await world.session(backend=ScriptedBackend(script), **options)
        spawn = Spawn("read", tools=tools, script=tuple(script))
        child = await world.get((await call(world.supervisor, AgentCaller(agent.id), SPAWN, spawn)).id)
        for each in (agent, child):
            for name in ("other", "code"):
                (tmp_path / name / "a").write_text("x")
            ran = (await each.query("go")).tool_calls
            assert ran == (1 if asked else 3)
            assert [(tmp_path / name / "a").read_text() for name in ("other", "code")] == ["y", "x" if asked else "y"]
