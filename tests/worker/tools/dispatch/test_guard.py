"""The guard: its verdicts, what it remembers during a turn, and how the toolbox follows the verdicts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Text, ToolUse
from orch_protocol.policy.approval import digest_of
from orch_protocol.policy.policy import PolicyConfig, PolicySpec
from orch_protocol.services.policy.approvals import ApprovalDecision, ApproveCall
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
    """Return a toolbox with `touch` under the policy `spec`, for an agent that uses `backend`.

    Each backend that the agent switches to is appended to `moves`.
    """
    context = ToolContext(folder, env={"HOME": str(folder)}, **root)

    async def move(to: BackendSpec) -> None:
        if moves is not None:
            moves.append(to)

    agent = AgentSpec("a1", 1, "n", "t", backend, str(folder), str(folder))
    return Toolbox([touch, *tools], context, Guard(spec, context, LocalOnlyGuard(agent, context.call_root, move)))


async def tool_reply(toolbox: Toolbox, **input: Any) -> tuple[bool, bool, str]:
    """Call `touch` and return whether it ran, whether the result is an error, and the text of the result."""
    outcome = await toolbox.dispatch(ToolUse("c1", "touch", input))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    return outcome.ran, outcome.result.is_error, block.text


async def test_granted_tools_run_unasked_in_a_program(tmp_path: Path) -> None:
    """In a program, a granted tool needs no approval if no policy is configured."""
    assert await tool_reply(box(tmp_path, PolicySpec()), path="a") == (True, False, "touched a 1")


async def test_denied_call_tells_the_model_to_stop(tmp_path: Path) -> None:
    """The result names the rule that denied the call and instructs the model to stop."""
    spec = PolicySpec(rules=PolicyConfig(denied_paths=("secret",)))
    ran, is_error, text = await tool_reply(box(tmp_path, spec), path="secret/key")
    assert (ran, is_error) == (False, True)
    assert text.startswith("[Denied: touch was not run: ")
    assert "denied_paths" in text
    assert DIRECTIVE in text


async def test_dot_is_the_working_folder(tmp_path: Path) -> None:
    """The rules `.` and `..` mean the working folder and its parent, not names of files."""
    (tmp_path / "here").mkdir()
    inside = box(tmp_path / "here", PolicySpec(rules=PolicyConfig(allowed_paths=(".",))))
    assert (await tool_reply(inside, path="a"))[0]
    assert not (await tool_reply(inside, path="../a"))[0]
    above = box(tmp_path / "here", PolicySpec(rules=PolicyConfig(denied_paths=("..",))))
    assert not (await tool_reply(above, path="../a"))[0]


async def test_approval_without_a_root_is_a_denial(tmp_path: Path) -> None:
    """If no root can be asked, the result gives this reason and the reason for the question."""
    ran, _, text = await tool_reply(box(tmp_path, PolicySpec()), path="~/.ssh/id")
    assert not ran
    assert f"{tmp_path}/.ssh/id holds credentials" in text
    assert "this tool runs without a root" in text


async def test_arguments_are_validated_before_the_policy(tmp_path: Path) -> None:
    """Invalid arguments give a schema error, even if the policy would ask about the path."""
    _, _, text = await tool_reply(box(tmp_path, PolicySpec()), path="~/.ssh/id", times="x")
    assert text.startswith("Invalid arguments for touch")


async def test_grant_is_checked_before_the_policy(tmp_path: Path) -> None:
    """A tool that is not granted is refused for this reason, even if the policy would ask about the path."""
    outcome = await box(tmp_path, PolicySpec()).dispatch(ToolUse("c1", "other", {"path": "~/.ssh/id"}))
    assert "is not granted" in str(outcome.result)


async def test_personal_data_counts_until_the_end_of_the_turn(tmp_path: Path) -> None:
    """After a call on personal data, later calls of the same turn need approval, but calls of the next turn do not."""
    spec = PolicySpec("cli", PolicyConfig(personal_paths=("mine/x",), permissions={"touch": "allow"}))
    toolbox = box(tmp_path, spec)
    assert (await tool_reply(toolbox, path="a"))[0]
    assert not (await tool_reply(toolbox, path="mine/x"))[0]
    assert not (await tool_reply(toolbox, path="a"))[0]
    toolbox.turn_began()
    assert (await tool_reply(toolbox, path="a"))[0]


async def test_links_are_resolved_at_call_time(tmp_path: Path) -> None:
    """A path is denied as soon as a link at this path leads to a denied path."""
    toolbox = box(tmp_path, PolicySpec(rules=PolicyConfig(denied_paths=("no/where",))))
    assert (await tool_reply(toolbox, path="link"))[0]
    (tmp_path / "no").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "no" / "where")
    assert not (await tool_reply(toolbox, path="link"))[0]


async def test_excessive_arguments_need_approval(tmp_path: Path) -> None:
    """A call needs approval if its arguments contain more words than the guard examines."""
    ran, _, text = await tool_reply(box(tmp_path, PolicySpec()), path=" ".join(map(str, range(25_000))))
    assert not ran
    assert "too many paths" in text


@tool(name="hear")
def hear() -> ToolOutput:
    """Return what is for models of this machine."""
    return ToolOutput("s3cret", local=True)


class TestLocal:
    """Calls whose results only a local model may read."""

    async def test_conversation_switches_to_a_local_model_before_the_tool_runs(self, tmp_path: Path) -> None:
        """An approved call on credentials switches the conversation to the local model once."""
        moves: list[BackendSpec] = []
        root = Root()
        toolbox = box(tmp_path, PolicySpec(), backend=FAR, moves=moves, call_root=root)
        assert (await tool_reply(toolbox, path="b"))[0]
        assert moves == []
        assert (await tool_reply(toolbox, path="~/.ssh/id"))[0]
        assert (await tool_reply(toolbox, path="~/.ssh/other"))[0]
        assert (moves, root.bound) == ([HERE], 1)
        assert root.asked[0].reason.endswith("from now on, the conversation uses here:m")
        assert root.asked[1].reason.endswith("holds credentials")

    async def test_denied_local_only_call_does_not_switch_the_model(self, tmp_path: Path) -> None:
        """If the user denies a call on credentials, the conversation keeps its model."""
        root = Root(allowed=False)
        assert not (await tool_reply(box(tmp_path, PolicySpec(), backend=FAR, call_root=root), path="~/.ssh/id"))[0]
        assert root.bound == 0

    async def test_local_only_call_without_a_local_model_is_denied_unasked(self, tmp_path: Path) -> None:
        """The result states that no local model is available, and the root receives no question."""
        root = Root(here=None)
        ran, _, text = await tool_reply(box(tmp_path, PolicySpec(), backend=FAR, call_root=root), path="~/.ssh/id")
        assert (ran, root.asked) == (False, [])
        assert "only a local model may read the result, and no local model is available (nothing answers)" in text

    async def test_person_is_asked_before_a_remote_model_reads_local_only_data(self, tmp_path: Path) -> None:
        """If `no_local_model` is `ask`, the question names the remote model, and approval does not switch the model."""
        spec = PolicySpec(rules=PolicyConfig(no_local_model="ask"))
        root = Root(here=None)
        assert (await tool_reply(box(tmp_path, spec, backend=FAR, call_root=root), path="~/.ssh/id"))[0]
        (asked,) = root.asked
        assert (asked.local, root.bound) == (True, 0)
        assert asked.reason.endswith("if you approve, a remote model reads the result")
        root = Root(here=None, allowed=False)
        assert not (await tool_reply(box(tmp_path, spec, backend=FAR, call_root=root), path="~/.ssh/id"))[0]

    async def test_unavailable_local_model_stops_an_approved_call(self, tmp_path: Path) -> None:
        """If the switch to the local model fails after the approval, the call does not run."""
        root = Root()
        root.meanwhile = lambda _: setattr(root, "here", None)
        ran, _, text = await tool_reply(box(tmp_path, PolicySpec(), backend=FAR, call_root=root), path="~/.ssh/id")
        assert (ran, "nothing answers" in text) == (False, True)

    async def test_local_only_result_switches_the_model_or_is_withheld(self, tmp_path: Path) -> None:
        """A result marked as local is shown to a local model, or is withheld if there is none."""
        for here, shown in ((HERE, True), (None, False)):
            root = Root(here=here)
            toolbox = box(tmp_path, PolicySpec(), backend=FAR, tools=[hear], call_root=root)
            result = (await toolbox.dispatch(ToolUse("c1", "hear", {}))).result
            assert ("s3cret" in str(result), result.is_error) == (shown, not shown)
            assert ("Withheld: only a local model may read the result of hear" in str(result)) is not shown


def test_model_is_local_by_its_address() -> None:
    """Built-in backends and servers at loopback addresses are local, and all other addresses are remote."""
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
    """A root that answers questions for approval, records them, and offers the local model `here`."""

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
        """Answer `approve` or `restrict_to_local`."""
        service = called.name
        assert seconds is not None
        if service == "restrict_to_local":
            if self.here is None:
                raise ConfigError("nothing answers")
            self.bound += not params.look
            return self.here
        assert service == "approve"
        self.asked.append(params)
        approved = ApprovalDecision(
            self._allowed,
            digest_of(params.tool, params.input, (*params.paths, *params.credentials)),
            "the user denied it",
        )
        self.meanwhile(params)
        return approved


async def test_approved_call_runs(tmp_path: Path) -> None:
    """The question for approval names tool, arguments, paths and reason."""
    root = Root()
    assert (await tool_reply(box(tmp_path, PolicySpec(), call_root=root), path="~/.ssh/id"))[0]
    (asked,) = root.asked
    assert (asked.tool, asked.input, asked.local) == ("touch", {"path": "~/.ssh/id"}, True)
    assert f"{tmp_path}/.ssh/id" in asked.paths
    assert "holds credentials" in asked.reason


async def test_declined_call_states_both_reasons(tmp_path: Path) -> None:
    """The result contains the reason of the policy and the decision of the user."""
    ran, _, text = await tool_reply(box(tmp_path, PolicySpec(), call_root=Root(allowed=False)), path="~/.ssh/id")
    assert not ran
    assert "holds credentials; the user denied it. " + DIRECTIVE in text


async def test_arguments_changed_after_approval_do_not_run(tmp_path: Path) -> None:
    """An approval covers only the arguments in the question, so a call with changed arguments is refused."""
    root = Root(lambda asked: asked.input.update(path="~/.ssh/other"))
    ran, _, text = await tool_reply(box(tmp_path, PolicySpec(), call_root=root), path="~/.ssh/id")
    assert (ran, "changed after the approval" in text) == (False, True)


async def test_link_changed_after_approval_does_not_run(tmp_path: Path) -> None:
    """A call is refused if its path leads to another target than at the time of the question."""

    def turn(_: ApproveCall) -> None:
        (tmp_path / ".ssh").symlink_to(tmp_path / "elsewhere")

    ran, _, text = await tool_reply(box(tmp_path, PolicySpec(), call_root=Root(turn)), path="~/.ssh/id")
    assert (ran, "the targets of its paths changed" in text) == (False, True)


@pytest.mark.parametrize("allowed", [True, False])
async def test_hooks_cannot_approve_plans_or_writes_in_plan_mode(tmp_path: Path, allowed: bool) -> None:
    """In plan mode, a writing call does not run although a hook approved it, and a person decides about the plan."""
    transcript = Transcript.open(tmp_path / "s", agent="a1", cwd="/")
    agenda, root = TaskList(transcript, planning=True), Root(allowed=allowed)
    toolbox = box(tmp_path, PolicySpec(), tools=load(["exit_plan_mode"]), call_root=root, task_list=agenda)
    touched = await toolbox.dispatch(ToolUse("c1", "touch", {"path": "a"}), approved=True)
    assert not touched.ran
    await toolbox.dispatch(ToolUse("c2", "exit_plan_mode", {"plan": "Do it."}), approved=True)
    assert [asked.tool for asked in root.asked] == ["exit_plan_mode"]
    assert agenda.planning is not allowed
    transcript.close()


async def test_wildcards_are_judged_by_their_matches(tmp_path: Path) -> None:
    """A path with wildcards is judged by the files that match, also through links and for rules with wildcards."""
    (tmp_path / "k.pem").touch()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / ".ssh")
    toolbox = box(tmp_path, PolicySpec(rules=PolicyConfig(denied_paths=("*.pem",))))
    ran, _, why = await tool_reply(toolbox, path="k.p*")
    assert (ran, f"{tmp_path}/k.pem is denied by denied_paths (*.pem)" in why) == (False, True)
    ran, _, why = await tool_reply(toolbox, path="l*k/id")
    assert ran  # no file matches yet
    (tmp_path / ".ssh" / "id").touch()
    ran, _, why = await tool_reply(toolbox, path="l*k/id")
    assert (ran, f"{tmp_path}/link/id holds credentials" in why) == (False, True)
    assert (await tool_reply(toolbox, path="x.p*"))[0]
    (tmp_path / "loop").symlink_to("loop")
    ran, _, why = await tool_reply(toolbox, path="l*/id")
    assert (ran, f"{tmp_path}/link/id holds credentials" in why) == (False, True)


@pytest.mark.parametrize("many", ["names", "folders"])
async def test_wildcards_with_too_many_matches_need_approval(
    tmp_path: Path, many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wildcard needs approval if it matches too many names or needs too many folders to be opened."""
    monkeypatch.setattr("orch_worker.policy.path_rules.MAX_NAMES", 100)
    inner = tmp_path / "inner"
    inner.mkdir()
    for number in range(60):
        (inner / f"f{number}").touch()
    toolbox = box(tmp_path, PolicySpec())
    assert (await tool_reply(toolbox, path="inner/*/*"))[0]
    for number in range(30 if many == "names" else 5):
        (inner / f"e{number}").touch() if many == "names" else (inner / f"e{number}").mkdir()
    ran, _, why = await tool_reply(toolbox, path="inner/*/*")
    assert (ran, "contain too many paths to check" in why) == (False, True)


async def test_recursive_search_skips_denied_files(tmp_path: Path) -> None:
    """Denied files are left out and counted, as are personal files where these need approval."""
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

    note = "\n[{} files were skipped because of the policy]"
    program, shell = PolicySpec(rules=rules), PolicySpec(channel="cli", rules=rules)
    found = await seen(program, "grep_files", pattern="answer")
    assert found == "a.txt:1: answer\nmy.diary:1: answer\nc/mine/1:1: answer\nkeys/x.txt:1: answer" + note.format(5)
    assert await seen(shell, "list_files") == "a.txt\nkeys/x.txt" + note.format(7)
    assert await seen(shell, "list_files", path="keys") == "keys/x.txt" + note.format(1)
    assert await seen(shell, "list_files", path="s") == "No files below 's'." + note.format(1)
    assert await seen(PolicySpec(), "list_files", path="s") == "s/k.pem"
    for glob in ("x.t*", "x.d*"):  # the count must not reveal names, so it is the same for each pattern
        assert (await seen(program, "list_files", glob=glob)).endswith(note.format(5))


async def test_approved_search_includes_personal_files(tmp_path: Path) -> None:
    """An approved search of a personal folder still leaves out denied files."""
    for name in ("my-diary/may.txt", "my-diary/k.pem", "my-diary/old-diary/april.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    rules = PolicyConfig(denied_paths=("*.pem",), personal_paths=("*-diary",))

    toolbox = box(tmp_path, PolicySpec(channel="cli", rules=rules), tools=load(("list_files",)), call_root=Root())
    outcome = await toolbox.dispatch(ToolUse("c1", "list_files", {"path": "my-diary"}))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    note = "\n[1 files were skipped because of the policy]"
    assert block.text == "my-diary/may.txt\nmy-diary/old-diary/april.txt" + note


@tool(name="bash")
def readable_credentials(context: ToolContext, command: str, credentials: bool = False) -> str:  # noqa: ARG001
    """Return the credentials that the call can read."""
    return names_in_home(context.credentials)


def names_in_home(paths: Iterable[str]) -> str:
    """Return the names of the files in the home folder of the test. The user who runs the tests has another one."""
    home = os.environ["HOME"]
    return " ".join(sorted(os.path.relpath(path, home) for path in paths if path.startswith(home)))


def home_with_credentials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the home folder of the agent, with a key and a token."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".netrc").touch()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.parametrize(
    ("input", "permission", "asked", "expected"),
    [
        ({}, "allow", 0, ""),
        ({}, "ask", 1, ""),
        ({"credentials": True}, "allow", 1, ".netrc .ssh"),
        ({"credentials": "true"}, "allow", 1, ".netrc .ssh"),
        ({"credentials": False}, "allow", 0, ""),
        ({"command": "git push -i ~/.ssh/id_work"}, "allow", 1, ".ssh"),
        ({"command": "cat ~/.azure/x ~/.netrc"}, "ask", 1, ".netrc"),
    ],
)
async def test_call_can_read_the_credentials_that_the_question_names(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    input: dict[str, Any],
    permission: str,
    asked: int,
    expected: str,
) -> None:
    """An approved call can read credentials only if it asked for them or contains their path."""
    home = home_with_credentials(tmp_path, monkeypatch)
    # A file that did not exist when the question was asked is not readable.
    root = Root(lambda _: (home / ".pypirc").touch())
    spec = PolicySpec(rules=PolicyConfig(permissions={"bash": permission}))  # type: ignore[dict-item]
    toolbox = box(tmp_path, spec, tools=[readable_credentials], call_root=root)
    outcome = await toolbox.dispatch(ToolUse("c1", "bash", {"command": "x", **input}))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    assert (block.text, len(root.asked)) == (expected or "(no output)", asked)
    assert names_in_home(path for question in root.asked for path in question.credentials) == expected


async def test_usable_credentials_are_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are readable without an approval, so the question names only the others."""
    home_with_credentials(tmp_path, monkeypatch)
    root = Root()
    spec = PolicySpec(rules=PolicyConfig(usable_credentials=("~/.ssh",)))
    toolbox = box(tmp_path, spec, tools=[readable_credentials], call_root=root)
    await toolbox.dispatch(ToolUse("c1", "bash", {"command": "ls ~/.ssh", "credentials": True}))
    assert [names_in_home(each.credentials) for each in root.asked] == [".netrc"]


async def test_hooks_cannot_approve_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person is asked, although a hook has approved the call."""
    home_with_credentials(tmp_path, monkeypatch)
    root = Root()
    toolbox = box(tmp_path, PolicySpec(), tools=[readable_credentials], call_root=root)
    await toolbox.dispatch(ToolUse("c1", "bash", {"command": "x", "credentials": True}), approved=True)
    assert len(root.asked) == 1


async def test_user_command_can_read_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a toolbox without a guard, which runs commands of the user, all credentials are readable."""
    home_with_credentials(tmp_path, monkeypatch)
    toolbox = Toolbox([readable_credentials], ToolContext(tmp_path))
    outcome = await toolbox.dispatch(ToolUse("c1", "bash", {"command": "x"}))
    (block,) = outcome.result.content
    assert isinstance(block, Text)
    assert {".ssh", ".netrc"} <= set(block.text.split())
