"""Approvals: who is asked, what counts as an answer, and what an answer is good for later."""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch import Config, Consent, PolicyConfig, Question, SubagentsConfig
from orch.policy.approvals import NOBODY_TO_ASK, ApprovalBroker
from orch.policy.caller import USER, AgentCaller
from orch.policy.grants import GrantStore, covers, grant_of
from orch.services import call
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import plain_line
from orch_protocol.policy.approval import AnswerQuestion, AnswerResult
from orch_protocol.services.approvals import ANSWER_APPROVAL
from orch_protocol.services.requests import QUERY, SPAWN, QueryAgent, Spawn
from orchestrator.root_double import NEST, opened
from virtual_clock import virtual


def question(id: str = "q1", **changes: Any) -> Question:
    """Return a question about `rm x`."""
    fields: dict[str, Any] = {"tool": "bash", "subject": "rm x", "input": {"command": "rm x"}, "digest": "d1"}
    fields |= {"paths": (), "reason": "why", "folder": "/w", "agent": "n", "agent_id": "a", "task": "t", "depth": 1}
    return Question(id=id, **(fields | changes))


@virtual
async def test_nobody_there_is_a_no_at_once(tmp_path: Path) -> None:
    """Without client and approver nothing is waited for."""
    before = asyncio.get_running_loop().time()
    assert "nobody is there" in await ApprovalBroker(tmp_path).ask(question(), "a", None, 100)
    assert asyncio.get_running_loop().time() == before


@pytest.mark.parametrize("said", [True, Consent(True)])
@virtual
async def test_a_program_may_answer_with_either(tmp_path: Path, said: Any) -> None:
    """True and a Consent are a yes, from an async function."""

    async def approve(_: Question) -> Any:
        return said

    assert await ApprovalBroker(tmp_path, approve).ask(question(), "a", None, 100) == ""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        *(
            (False, "the user said no"),
            (None, "answered NoneType"),
            (1, "answered int"),
            (Consent("no"), "a Consent that is none"),  # type: ignore[arg-type]
            (Consent(True, "project", seconds=math.nan), "a Consent that is none: seconds is nan"),
            (Consent(True, "ever"), "a Consent that is none"),  # type: ignore[arg-type]
            (KeyError("k"), "KeyError: 'k'"),
        ),
        (asyncio.CancelledError(), "failed: CancelledError"),
    ],
)
@virtual
async def test_whatever_is_no_clear_yes_is_a_no(tmp_path: Path, said: Any, why: str) -> None:
    """A no, nothing, something else, a failure and a way out of the program all deny, and say which."""

    async def approve(_: Question) -> Any:
        if isinstance(said, BaseException):
            raise said
        return said

    assert why in await ApprovalBroker(tmp_path, approve).ask(question(), "a", None, 100)


@pytest.mark.parametrize("raised", [SystemExit(3), StopIteration(), KeyboardInterrupt()])
async def test_whoever_leaves_while_asked_ends_a_thread_alone(tmp_path: Path, raised: BaseException) -> None:
    """A function that is not async runs in one; the program goes on, and the call is denied."""

    def approve(_: Question) -> bool:
        raise raised

    assert type(raised).__name__ in await ApprovalBroker(tmp_path, approve).ask(question(), "a", None, 100)


async def test_who_approves_has_the_context_variables_of_the_program(tmp_path: Path) -> None:
    """In its thread, too."""
    user = ContextVar("user", default="nobody")
    user.set("somebody")
    assert await ApprovalBroker(tmp_path, lambda _: user.get() == "somebody").ask(question(), "a", None, 100) == ""


@virtual
async def test_an_answer_that_does_not_come_is_a_no_in_time(tmp_path: Path) -> None:
    """A question waits as long as it may and no longer; an answer after that does not count."""
    asked: list[Question] = []
    approvals = ApprovalBroker(tmp_path)
    approvals.attend("q", asked.append)
    assert "within 5 s" in await approvals.ask(question(), "a", "q", 5)
    late = approvals.answer(AnswerQuestion("q1", True))
    assert (late.taken, late.note) == (False, "nobody answered in time")


@virtual
async def test_client_that_could_not_ask_denies_as_if_nobody_were_there(tmp_path: Path) -> None:
    """The reason is the same, and such calls are counted."""
    approvals = ApprovalBroker(tmp_path)
    approvals.attend("q", lambda _: None)
    asking = asyncio.create_task(approvals.ask(question(), "a", "q", 5))
    await asyncio.sleep(0)
    assert approvals.answer(AnswerQuestion("q1", True, unasked=True)).taken
    assert await asking == NOBODY_TO_ASK


def test_denied_calls_are_counted_for_each_query_once(tmp_path: Path) -> None:
    """A count is taken with the end of its query."""
    approvals = ApprovalBroker(tmp_path)
    approvals.count_denied(["parent", "child"])
    approvals.count_denied(["parent"])
    assert [approvals.take_denied(id) for id in ("parent", "child", "parent")] == [2, 1, 0]


@virtual
async def test_the_first_answer_counts(tmp_path: Path) -> None:
    """Of two answers the second is told that it did not count."""
    approvals = ApprovalBroker(tmp_path)
    approvals.attend("q", lambda _: None)
    asking = asyncio.create_task(approvals.ask(question(), "a", "q", 5))
    await asyncio.sleep(0)
    assert not approvals.answer(AnswerQuestion("q1", True, "project", seconds=math.nan)).taken  # it would never end
    assert approvals.answer(AnswerQuestion("q1", False)) == AnswerResult(True)
    assert not approvals.answer(AnswerQuestion("q1", True)).taken
    assert await asking == "the user said no"
    assert not approvals.answer(AnswerQuestion("other", True)).taken


@virtual
async def test_a_client_that_leaves_has_said_no(tmp_path: Path) -> None:
    """What a client was asked is denied when it goes away."""
    approvals = ApprovalBroker(tmp_path)
    asked: list[Question] = []
    approvals.attend("q", asked.append)
    asking = asyncio.create_task(approvals.ask(question(), "a", "q", 500))
    await asyncio.sleep(0)
    approvals.leave("q", asked.append)
    assert await asking == "whoever was asked is gone"


@virtual
async def test_a_question_waits_for_a_client_that_returns(tmp_path: Path) -> None:
    """Who comes back, or comes along, is asked what was asked before; the no has a reason."""
    first: list[Question] = []
    second: list[Question] = []
    approvals = ApprovalBroker(tmp_path)
    approvals.attend("agent", first.append)
    asking = asyncio.create_task(approvals.ask(question(), "a", "agent", 500))
    await asyncio.sleep(0)
    approvals.leave("agent", first.append, returns=True)
    assert not approvals.attended("agent")
    approvals.attend("agent", second.append)
    assert first == second != []
    assert approvals.answer(AnswerQuestion("q1", False, reason="not on a Friday")).taken
    assert await asking == "the user said no: not on a Friday"


@virtual
async def test_one_of_two_clients_may_leave(tmp_path: Path) -> None:
    """Both are asked, and the question stays as long as one of them is there."""
    first: list[Question] = []
    second: list[Question] = []
    approvals = ApprovalBroker(tmp_path)
    approvals.attend("q", first.append)
    approvals.attend("q", second.append)
    asking = asyncio.create_task(approvals.ask(question(), "a", "q", 500))
    await asyncio.sleep(0)
    assert first == second != []
    approvals.leave("q", first.append)
    assert approvals.answer(AnswerQuestion("q1", True)).taken
    assert await asking == ""


class TestLater:
    """What a yes is good for afterwards."""

    @virtual
    async def test_a_session_is_one_tree(self, tmp_path: Path) -> None:
        """A yes for the session holds for the same call below the same first agent, and nowhere else."""
        asked: list[Question] = []

        async def approve(each: Question) -> Consent:
            asked.append(each)
            return Consent(True, "session")

        approvals = ApprovalBroker(tmp_path, approve)
        for id, session, digest in (("1", "a", "d1"), ("2", "a", "d1"), ("3", "b", "d1"), ("4", "a", "d2")):
            assert await approvals.ask(question(id, digest=digest), session, None, 5) == ""
        assert [each.id for each in asked] == ["1", "3", "4"]

    @virtual
    async def test_a_project_is_a_folder_and_ends(self, tmp_path: Path) -> None:
        """A yes for the project holds in other roots too, for its folder, until its time is over or it is revoked."""
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
        with pytest.raises(ConfigError, match="no permission"):
            another.revoke([taken.id])

    @virtual
    async def test_what_holds_is_listed_and_taken_back(self, tmp_path: Path) -> None:
        """Sessions' and projects' are listed while they hold, with their end; what is revoked is asked about anew."""
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
        with pytest.raises(ConfigError, match="no permission with id x"):
            approvals.revoke([second.id, "x"])
        assert approvals.revoke([second.id]) == [second]
        says.append(Consent(False))
        assert await approvals.ask(question("5", digest="d2"), "b", None, 5) == "the user said no"
        assert [each.id for each in approvals.revoke(None)][:1] == [git.id]
        assert approvals.permissions() == []

    @pytest.mark.parametrize(
        ("subject", "covered"),
        [("git log", True), ("git log; rm x", False), ("git log\nrm x", False), ("git $(rm x)", False), ("got", False)],
    )
    def test_a_pattern_covers_simple_commands(self, subject: str, covered: bool) -> None:
        """A pattern never covers a command that may be more than one, nor what is for a local model."""
        grant = grant_of(question(), Consent(True, "project", "git *"), 0.0)
        assert covers(grant, question(subject=subject, digest="other"), 1.0) is covered
        assert not covers(grant, question(subject=subject, digest="other", local=True), 1.0)
        assert not covers(grant, question(subject=subject, digest="other", tool="own"), 1.0)

    def test_a_file_that_cannot_be_read_is_an_error(self, tmp_path: Path) -> None:
        """A damaged record grants nothing and says what to do."""
        (tmp_path / "permissions.json").write_text("{")
        with pytest.raises(ConfigError, match="remove the file"):
            GrantStore(tmp_path).of()


@given(st.text(max_size=60))
def test_no_text_forges_a_line(text: str) -> None:
    """Whatever a model writes, each line of a question is one line of what can be seen, and begins with its name."""
    lines = question(agent=text, task=text, subject=text, reason=text, folder=text).with_lines().lines
    names = [line.partition(":")[0] for line in lines]
    assert names == ["agent", "task", "tool", "wants", "in", "asked since"]
    assert all(line.isprintable() for line in lines)


def test_a_line_shows_what_was_hidden() -> None:
    """Line ends, escape sequences and marks of direction are written out, and a long text is cut."""
    assert plain_line("a\nb\x1b[2K\u202ec\u2028", 40) == "a\\nb\\x1b[2K\\u202ec\\u2028"
    assert plain_line("x" * 50, 10) == "xxxxxxx..."
    assert len(plain_line("\n" * 10, 10)) <= 10


RM = {"tool": "bash", "input": {"command": "rm precious.txt"}}


async def test_reply_counts_denied_calls_of_the_agent_and_of_its_subagents(tmp_path: Path) -> None:
    """Where nobody can be asked: for every query that the call was made for, and for no later one."""
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
async def test_what_a_grandchild_wants_is_asked_at_the_root(tmp_path: Path, allow: bool, left: bool) -> None:
    """A question of an agent two levels down reaches the program with its name, task, command and folder; its answer
    decides, and a yes runs exactly that."""
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
async def test_a_session_that_was_approved_is_listed_until_its_agent_is_gone(tmp_path: Path) -> None:
    """Programs see what holds, and take it back: the next call is asked about; a killed agent's holds for nobody."""
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


async def test_the_client_that_waits_is_asked_and_answers(tmp_path: Path) -> None:
    """The client of the first agent's query is asked what an agent below wants, and its answer counts."""
    (tmp_path / "precious.txt").write_text("x")
    config = Config(subagents=SubagentsConfig(allow_nested=True), policy=PolicyConfig(approval_mode="ask"))
    async with opened(tmp_path / "home", config=config) as world:
        root = world.supervisor
        seen: list[Question] = []

        def client(event: Any) -> None:
            seen.append(event)
            said = AnswerQuestion(event.id, allow=True)
            tasks.append(asyncio.ensure_future(call(root, USER, ANSWER_APPROVAL, said)))

        tasks: list[asyncio.Future[Any]] = []
        agent = await world.scripted(RM, "done", tools=["bash"], cwd=tmp_path)
        reply = await call(root, USER, QUERY, QueryAgent(agent.id, "tidy", approve=True), client)
        assert (reply.text, [await task for task in tasks]) == ("done", [AnswerResult(True)])
        assert [each.kind for each in seen] == ["question"]
        assert not (tmp_path / "precious.txt").exists()


def test_pattern_does_not_cover_a_call_that_asks_for_credentials() -> None:
    """Whoever approved `rm *` was not asked about credentials; the approval of exactly that call holds."""
    pattern = grant_of(question(), Consent(True, "session", "rm *"), 0.0)
    asking = question(input={"command": "rm x", "credentials": True})
    assert covers(pattern, question(), 1.0)
    assert not covers(pattern, asking, 1.0)
    assert covers(grant_of(asking, Consent(True, "session"), 0.0), asking, 1.0)


@virtual
async def test_approval_by_a_pattern_is_told_from_one_of_the_call(tmp_path: Path) -> None:
    """A pattern that was approved earlier is no approval of this very call."""
    approvals = ApprovalBroker(tmp_path, lambda _: Consent(True, "session", "rm *"))
    assert not approvals.by_pattern(question(), "a")
    await approvals.ask(question(), "a", None, 100)
    assert approvals.by_pattern(question(), "a")
    exactly = ApprovalBroker(tmp_path, lambda _: Consent(True, "session"))
    await exactly.ask(question(), "a", None, 100)
    assert not exactly.by_pattern(question(), "a")
