"""The guard: what it judges, what it remembers of a turn, and that the toolbox heeds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Text, ToolUse
from orch_protocol.policy.approval import ApprovalDecision, ApproveCall, digest_of
from orch_protocol.policy.policy import PolicyConfig, PolicySpec
from orch_protocol.services.service import AnyService
from orch_worker.backends.registry import is_remote
from orch_worker.session.interruption_notes import DIRECTIVE
from orch_worker.session.plan import TaskList
from orch_worker.session.transcript import Transcript
from orch_worker.tools.api.base import Tool, ToolContext, ToolOutput, tool
from orch_worker.tools.dispatch.guard import Guard
from orch_worker.tools.dispatch.local_only import LocalOnlyGuard
from orch_worker.tools.dispatch.presets import load
from orch_worker.tools.dispatch.toolbox import Toolbox


@tool
def touch(path: str, times: int = 1) -> str:
    """Touch a file, so many times."""
    return f"touched {path} {times}"


FAR = BackendSpec("far", "m", {"base_url": "https://example.org/v1"})
HERE = BackendSpec("here", "m", {"base_url": "http://localhost:1/v1"})


def box(
    folder: Path,
    spec: PolicySpec,
    *,
    backend: BackendSpec = HERE,
    moves: list[BackendSpec] | None = None,
    tools: Sequence[Tool] = (),
    **root: Any,
) -> Toolbox:
    """Return a toolbox with `touch` under `spec`, of an agent behind `backend` whose `moves` are kept."""
    context = ToolContext(folder, env={"HOME": str(folder)}, **root)

    async def move(to: BackendSpec) -> None:
        if moves is not None:
            moves.append(to)

    agent = AgentSpec("a1", 1, "n", "t", backend, str(folder), str(folder))
    return Toolbox([touch, *tools], context, Guard(spec, context, LocalOnlyGuard(agent, context.call_root, move)))


async def told(toolbox: Toolbox, **input: Any) -> tuple[bool, bool, str]:
    """Call `touch` and return whether it ran, whether that is an error, and what the model is told."""
    outcome = await toolbox.dispatch(ToolUse("c1", "touch", input))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    return outcome.ran, outcome.result.is_error, block.text


async def test_what_a_program_granted_runs(tmp_path: Path) -> None:
    """Without any configuration a granted tool runs unasked."""
    assert await told(box(tmp_path, PolicySpec()), path="a") == (True, False, "touched a 1")


async def test_denied_call_is_not_run_and_says_to_stop(tmp_path: Path) -> None:
    """A denied call is a result that names the reason and tells the model to stop and ask."""
    spec = PolicySpec(rules=PolicyConfig(denied_paths=("secret",)))
    ran, is_error, text = await told(box(tmp_path, spec), path="secret/key")
    assert (ran, is_error) == (False, True)
    assert text.startswith("[Denied: touch was not run: ")
    assert "denied_paths" in text
    assert DIRECTIVE in text


async def test_a_dot_is_the_folder_the_agent_works_in(tmp_path: Path) -> None:
    """By its place, not by its name, which no path has."""
    (tmp_path / "here").mkdir()
    inside = box(tmp_path / "here", PolicySpec(rules=PolicyConfig(allowed_paths=(".",))))
    assert (await told(inside, path="a"))[0]
    assert not (await told(inside, path="../a"))[0]
    above = box(tmp_path / "here", PolicySpec(rules=PolicyConfig(denied_paths=("..",))))
    assert not (await told(above, path="../a"))[0]


async def test_credentials_are_denied_where_there_is_no_root_to_ask(tmp_path: Path) -> None:
    """What needs approval is denied where it cannot be asked for, and the result says so."""
    ran, _, text = await told(box(tmp_path, PolicySpec()), path="~/.ssh/id")
    assert not ran
    assert f"{tmp_path}/.ssh/id holds credentials" in text
    assert "this tool runs without a root" in text


async def test_arguments_are_checked_before_the_policy_is(tmp_path: Path) -> None:
    """A call that does not fit its schema is told so, whatever it names."""
    _, _, text = await told(box(tmp_path, PolicySpec()), path="~/.ssh/id", times="x")
    assert text.startswith("Invalid arguments for touch")


async def test_a_tool_that_was_not_granted_is_refused_as_such(tmp_path: Path) -> None:
    """The grant comes before the policy: what was not granted is not judged."""
    outcome = await box(tmp_path, PolicySpec()).dispatch(ToolUse("c1", "other", {"path": "~/.ssh/id"}))
    assert "is not granted" in str(outcome.result)


async def test_personal_data_counts_until_the_turn_is_over(tmp_path: Path) -> None:
    """Once a call has named personal data every later one of the turn is held to that; in the next turn none is."""
    spec = PolicySpec("cli", PolicyConfig(personal_paths=("mine/x",), permissions={"touch": "allow"}))
    toolbox = box(tmp_path, spec)
    assert (await told(toolbox, path="a"))[0]
    assert not (await told(toolbox, path="mine/x"))[0]
    assert not (await told(toolbox, path="a"))[0]
    toolbox.turn_began()
    assert (await told(toolbox, path="a"))[0]


async def test_a_link_made_later_is_seen(tmp_path: Path) -> None:
    """Links are followed when a call is made, not when the agent came up."""
    toolbox = box(tmp_path, PolicySpec(rules=PolicyConfig(denied_paths=("no/where",))))
    assert (await told(toolbox, path="link"))[0]
    (tmp_path / "no").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "no" / "where")
    assert not (await told(toolbox, path="link"))[0]


async def test_too_much_to_look_through_is_not_let_through(tmp_path: Path) -> None:
    """A call whose arguments name more than can be looked at needs approval."""
    ran, _, text = await told(box(tmp_path, PolicySpec()), path=" ".join(map(str, range(25_000))))
    assert not ran
    assert "too much" in text


@tool(name="hear")
def hear() -> ToolOutput:
    """Return what is for models of this machine."""
    return ToolOutput("s3cret", local=True)


class TestLocal:
    """What is for a local model alone."""

    async def test_the_conversation_moves_before_the_tool_runs(self, tmp_path: Path) -> None:
        """With a model on this machine the agent goes on with that one, bound once, when the call was approved."""
        moves: list[BackendSpec] = []
        root = Root()
        toolbox = box(tmp_path, PolicySpec(), backend=FAR, moves=moves, call_root=root)
        assert (await told(toolbox, path="b"))[0]
        assert moves == []
        assert (await told(toolbox, path="~/.ssh/id"))[0]
        assert (await told(toolbox, path="~/.ssh/other"))[0]
        assert (moves, root.bound) == ([HERE], 1)
        assert root.asked[0].reason.endswith("the conversation goes on with here:m, for good")
        assert root.asked[1].reason.endswith("holds credentials")

    async def test_what_was_not_approved_moves_nothing(self, tmp_path: Path) -> None:
        """A no leaves the conversation where it is."""
        root = Root(allowed=False)
        assert not (await told(box(tmp_path, PolicySpec(), backend=FAR, call_root=root), path="~/.ssh/id"))[0]
        assert root.bound == 0

    async def test_without_a_local_model_it_is_denied_and_nobody_is_asked(self, tmp_path: Path) -> None:
        """The result says that there is no model on this machine, and why."""
        root = Root(here=None)
        ran, _, text = await told(box(tmp_path, PolicySpec(), backend=FAR, call_root=root), path="~/.ssh/id")
        assert (ran, root.asked) == (False, [])
        assert "is for a model on this machine, and there is none (nothing answers)" in text

    async def test_only_a_person_lets_it_go_elsewhere_where_that_is_configured(self, tmp_path: Path) -> None:
        """With `without_local` the question says where it would go; a yes binds nothing, and no pattern fits."""
        spec = PolicySpec(rules=PolicyConfig(no_local_model="ask"))
        root = Root(here=None)
        assert (await told(box(tmp_path, spec, backend=FAR, call_root=root), path="~/.ssh/id"))[0]
        (asked,) = root.asked
        assert (asked.local, root.bound) == (True, 0)
        assert asked.reason.endswith("a yes lets it go to one that is elsewhere")
        root = Root(here=None, allowed=False)
        assert not (await told(box(tmp_path, spec, backend=FAR, call_root=root), path="~/.ssh/id"))[0]

    async def test_a_model_that_is_gone_by_then_is_not_gone_around(self, tmp_path: Path) -> None:
        """When binding fails after a yes, the call does not run."""
        root = Root()
        root.meanwhile = lambda _: setattr(root, "here", None)
        ran, _, text = await told(box(tmp_path, PolicySpec(), backend=FAR, call_root=root), path="~/.ssh/id")
        assert (ran, "nothing answers" in text) == (False, True)

    async def test_an_answer_for_local_models_moves_its_reader_or_is_withheld(self, tmp_path: Path) -> None:
        """What a tool brings that only local models may read is shown to one, or to nobody."""
        for here, shown in ((HERE, True), (None, False)):
            root = Root(here=here)
            toolbox = box(tmp_path, PolicySpec(), backend=FAR, tools=[hear], call_root=root)
            result = (await toolbox.dispatch(ToolUse("c1", "hear", {}))).result
            assert ("s3cret" in str(result), result.is_error) == (shown, not shown)
            assert ("Withheld: what hear brought" in str(result)) is not shown


def test_a_model_is_remote_by_its_address() -> None:
    """Built-in backends and servers on this machine are local, every other address is not."""
    assert not is_remote(BackendSpec("extractive"))
    for url in ("http://localhost:11434/v1", "http://127.0.0.1:1", "http://[::1]:1"):
        assert not is_remote(BackendSpec("x", "m", {"base_url": url}))
    for url in (
        "https://example.org/v1",
        "http://10.0.0.1",
        "http://127.example.org",
        "http://0.0.0.0:1",
        "http://[::]",
        "",
    ):
        assert is_remote(BackendSpec("x", "m", {"base_url": url}))


class Root:
    """Answers `approve`, and `localise` with the model `here`, and keeps what was asked."""

    def __init__(
        self,
        meanwhile: Callable[[ApproveCall], None] = lambda _: None,
        allowed: bool = True,
        here: BackendSpec | None = HERE,
    ) -> None:
        self.asked: list[ApproveCall] = []
        self.bound = 0
        self.here = here
        self.meanwhile, self._allowed = meanwhile, allowed

    async def __call__(self, called: AnyService, params: Any, seconds: float | None = None) -> Any:
        service = called.name
        """Answer a question, after what happens meanwhile."""
        assert seconds is not None
        if service == "restrict_to_local":
            if self.here is None:
                raise ConfigError("nothing answers")
            self.bound += not params.look
            return self.here
        assert service == "approve"
        self.asked.append(params)
        approved = ApprovalDecision(
            self._allowed, digest_of(params.tool, params.input, params.paths), "the user said no"
        )
        self.meanwhile(params)
        return approved


async def test_what_is_approved_runs(tmp_path: Path) -> None:
    """A yes from the root lets the call run; what was asked names tool, arguments, places and reason."""
    root = Root()
    assert (await told(box(tmp_path, PolicySpec(), call_root=root), path="~/.ssh/id"))[0]
    (asked,) = root.asked
    assert (asked.tool, asked.input, asked.local) == ("touch", {"path": "~/.ssh/id"}, True)
    assert f"{tmp_path}/.ssh/id" in asked.paths
    assert "holds credentials" in asked.reason


async def test_a_no_is_told_with_both_reasons(tmp_path: Path) -> None:
    """The result of a call that the user declined says what was wrong with it and that the user said no."""
    ran, _, text = await told(box(tmp_path, PolicySpec(), call_root=Root(allowed=False)), path="~/.ssh/id")
    assert not ran
    assert "holds credentials; the user said no. " + DIRECTIVE in text


async def test_arguments_changed_after_approval_do_not_run(tmp_path: Path) -> None:
    """What was approved is what runs: arguments that are others by then are refused."""
    root = Root(lambda asked: asked.input.update(path="~/.ssh/other"))
    ran, _, text = await told(box(tmp_path, PolicySpec(), call_root=root), path="~/.ssh/id")
    assert (ran, "changed after it was approved" in text) == (False, True)


async def test_a_link_changed_after_approval_does_not_run(tmp_path: Path) -> None:
    """A path that leads elsewhere after it was approved is refused too."""

    def turn(_: ApproveCall) -> None:
        (tmp_path / ".ssh").symlink_to(tmp_path / "elsewhere")

    ran, _, text = await told(box(tmp_path, PolicySpec(), call_root=Root(turn)), path="~/.ssh/id")
    assert (ran, "what they lead to, changed" in text) == (False, True)


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_plan_that_a_hook_approves_is_asked_about_all_the_same(tmp_path: Path, allowed: bool) -> None:
    """Plan mode ends by what a person says, and in plan mode no hook lets a call run that writes."""
    transcript = Transcript.open(tmp_path / "s", agent="a1", cwd="/")
    agenda, root = TaskList(transcript, planning=True), Root(allowed=allowed)
    toolbox = box(tmp_path, PolicySpec(), tools=load(["exit_plan_mode"]), call_root=root, agenda=agenda)
    touched = await toolbox.dispatch(ToolUse("c1", "touch", {"path": "a"}), approved=True)
    assert not touched.ran
    await toolbox.dispatch(ToolUse("c2", "exit_plan_mode", {"plan": "Do it."}), approved=True)
    assert [asked.tool for asked in root.asked] == ["exit_plan_mode"]
    assert agenda.planning is not allowed
    transcript.close()


async def test_wildcards_are_judged_by_what_they_stand_for(tmp_path: Path) -> None:
    """Whatever wildcards the rule has itself, and where a link leads that they find."""
    (tmp_path / "k.pem").touch()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / ".ssh")
    toolbox = box(tmp_path, PolicySpec(rules=PolicyConfig(denied_paths=("*.pem",))))
    ran, _, why = await told(toolbox, path="k.p*")
    assert (ran, f"{tmp_path}/k.pem is denied by denied_paths (*.pem)" in why) == (False, True)
    ran, _, why = await told(toolbox, path="l*k/id")
    assert ran  # nothing is there
    (tmp_path / ".ssh" / "id").touch()
    ran, _, why = await told(toolbox, path="l*k/id")
    assert (ran, f"{tmp_path}/link/id holds credentials" in why) == (False, True)
    assert (await told(toolbox, path="x.p*"))[0]
    (tmp_path / "loop").symlink_to("loop")
    ran, _, why = await told(toolbox, path="l*/id")
    assert (ran, f"{tmp_path}/link/id holds credentials" in why) == (False, True)


@pytest.mark.parametrize("many", ["names", "folders"])
async def test_wildcards_that_stand_for_too_much_are_asked_about(
    tmp_path: Path, many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether that is many names, or a few folders too many to be opened; files are not looked into."""
    monkeypatch.setattr("orch_worker.policy.path_rules.MOST_NAMES", 100)
    inner = tmp_path / "inner"
    inner.mkdir()
    for number in range(60):
        (inner / f"f{number}").touch()
    toolbox = box(tmp_path, PolicySpec())
    assert (await told(toolbox, path="inner/*/*"))[0]
    for number in range(30 if many == "names" else 5):
        (inner / f"e{number}").touch() if many == "names" else (inner / f"e{number}").mkdir()
    ran, _, why = await told(toolbox, path="inner/*/*")
    assert (ran, "name too much to be looked through" in why) == (False, True)


async def test_what_is_denied_is_passed_over_where_folders_are_searched(tmp_path: Path) -> None:
    """Whatever the rule is. Where a person is asked about personal data, that too is left out."""
    for name in ("a.txt", "k.pem", "s/k.pem", ".env", "keys/x.key", "keys/x.txt", "my.diary", "c/no/1", "c/mine/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("answer\n")
    rules = PolicyConfig(
        denied_paths=("*.pem", ".env", "keys/*.key", "c/no"), personal_paths=("*.diary", f"{tmp_path}/c/mine")
    )

    async def seen(spec: PolicySpec, name: str, **input: Any) -> str:
        outcome = await box(tmp_path, spec, tools=load(("grep_files", "list_files"))).dispatch(
            ToolUse("c1", name, input)
        )
        (block,) = outcome.result.content
        assert isinstance(block, Text)
        return block.text

    note = "\n[{} files passed over: the policy keeps them away]"
    program, shell = PolicySpec(rules=rules), PolicySpec(channel="cli", rules=rules)
    found = await seen(program, "grep_files", pattern="answer")
    assert found == "a.txt:1: answer\nmy.diary:1: answer\nc/mine/1:1: answer\nkeys/x.txt:1: answer" + note.format(5)
    assert await seen(shell, "list_files") == "a.txt\nkeys/x.txt" + note.format(7)
    assert await seen(shell, "list_files", path="keys") == "keys/x.txt" + note.format(1)
    assert await seen(shell, "list_files", path="s") == "No files below 's'." + note.format(1)
    assert await seen(PolicySpec(), "list_files", path="s") == "s/k.pem"
    for glob in ("x.t*", "x.d*"):  # what they are called that are passed over, it says by no number
        assert (await seen(program, "list_files", glob=glob)).endswith(note.format(5))


async def test_what_somebody_was_asked_about_is_not_passed_over(tmp_path: Path) -> None:
    """Whoever approved a search of a personal folder wants it searched; what is denied is passed over still."""
    for name in ("my-diary/may.txt", "my-diary/k.pem", "my-diary/old-diary/april.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    rules = PolicyConfig(denied_paths=("*.pem",), personal_paths=("*-diary",))

    toolbox = box(tmp_path, PolicySpec(channel="cli", rules=rules), tools=load(("list_files",)), call_root=Root())
    outcome = await toolbox.dispatch(ToolUse("c1", "list_files", {"path": "my-diary"}))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    note = "\n[1 files passed over: the policy keeps them away]"
    assert block.text == "my-diary/may.txt\nmy-diary/old-diary/april.txt" + note


@tool(name="bash")
def told_of_approval(context: ToolContext, command: str, credentials: bool = False) -> str:
    """Say whether the call was approved."""
    return f"{command} {credentials} {context.approved}"


@pytest.mark.parametrize(
    ("input", "permission", "by_pattern", "asked", "said"),
    [
        ({}, "allow", False, 0, "x False False"),
        ({}, "ask", False, 1, "x False True"),
        ({}, "ask", True, 1, "x False False"),
        ({"credentials": True}, "allow", False, 1, "x True True"),
        ({"credentials": "true"}, "allow", False, 1, "x True True"),
        ({"credentials": False}, "allow", False, 0, "x False False"),
    ],
)
async def test_tool_knows_whether_its_call_was_approved(
    tmp_path: Path, input: dict[str, Any], permission: str, by_pattern: bool, asked: int, said: str
) -> None:
    """One that asks for credentials is asked about, whatever is allowed; a pattern approves no particular call."""
    questions: list[ApproveCall] = []

    async def approve(_: str, params: Any, __: float | None = None) -> ApprovalDecision:
        questions.append(params)
        return ApprovalDecision(True, digest_of(params.tool, params.input, params.paths), "", by_pattern)

    spec = PolicySpec(rules=PolicyConfig(permissions={"bash": permission}))  # type: ignore[dict-item]
    toolbox = box(tmp_path, spec, tools=[told_of_approval], call_root=approve)
    outcome = await toolbox.dispatch(ToolUse("c1", "bash", {"command": "x", **input}))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    assert (block.text, len(questions)) == (said, asked)


async def test_persons_own_command_counts_as_approved(tmp_path: Path) -> None:
    """A toolbox without a guard runs what a person typed."""
    outcome = await Toolbox([told_of_approval], ToolContext(tmp_path)).dispatch(ToolUse("c1", "bash", {"command": "x"}))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    assert block.text == "x False True"
