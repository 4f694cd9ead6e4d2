"""Looking at a folder for the project in it: what is found, what is left out, and that it always comes to an end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.agent.project import ContextConfig, ContextFile, ContextSpec, ProjectSurvey
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.taint import TaintConfig
from orch_protocol.policy.policy import PolicyCall, PolicyConfig, PolicySpec, Verdict
from orch_protocol.services.service import AnyService
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.prompt import project_scan
from orch_worker.prompt.project import ProjectDescription, context_text
from orch_worker.prompt.project_scan import (
    MAX_BELOW,
    MAX_FILES,
    MAX_FOLDERS,
    ProjectScan,
    permitted_survey,
    survey_project,
)
from orch_worker.tools.api.base import ToolContext, ToolError
from orch_worker.tools.dispatch.guard import Guard
from orch_worker.tools.dispatch.local_only import LocalOnlyGuard

RULES = ContextConfig()


def fill(folder: Path, **files: str | bytes) -> Path:
    """Write `files` below `folder`; `__` in a name is a slash, `_` a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def found(folder: Path, rules: ContextConfig = RULES) -> ProjectDescription:
    """Return what is found in `folder`, all of which may be told."""
    seen = survey_project(rules, ToolContext(folder))
    names = {page.path for page in seen.pages} | {name for name, _ in (*seen.manifests, *filter(None, [seen.readme]))}
    return permitted_survey(seen, names, listed=True)


def guard_of(spec: PolicySpec, context: ToolContext) -> Guard:
    """Return a guard of an agent whose model is elsewhere."""
    far = BackendSpec("far", "m", {"base_url": "https://example.org/v1"})

    async def move(_: BackendSpec) -> None:
        raise AssertionError("it moved")

    agent = AgentSpec("a1", 1, "n", "t", far, str(context.cwd), str(context.cwd))
    return Guard(spec, context, LocalOnlyGuard(agent, context.call_root, move))


async def told(folder: Path, level: Any = "brief", policy: PolicySpec | None = None, **root: Any) -> str:
    """Return what an agent in `folder` is told, "" for nothing."""
    context = ToolContext(folder, env={"HOME": str(folder.parent)}, **root)
    guard = guard_of(policy or PolicySpec(), context)
    return context_text(await ProjectScan(ContextSpec(level, RULES), context, guard, TokenEstimator()).look())


async def test_a_project_is_told_in_a_few_lines(tmp_path: Path) -> None:
    """What it calls itself, how its README begins, its files, its folders with what is in them, its context files."""
    fill(
        tmp_path,
        pyproject_toml='[project]\nname = "zoo"\ndescription = "Counts animals"\n',
        README_md="# Zoo\n\n[![badge](x)](y)\n\n```console\n$ zoo\n```\n\nZoo counts\nanimals.\n\nMore.\n",
        AGENTS_md="Run make test.\n",
        src__a_py="",
        src__b_py="",
        src__c_md="",
        docs__d_md="",
    )
    assert found(tmp_path).about == ("pyproject.toml: zoo: Counts animals", "README.md: Zoo counts animals.")
    text = await told(tmp_path)
    assert "\nAGENTS.md, README.md, pyproject.toml\ndocs/ (1 file, most .md)\nsrc/ (3 files, most .py)\n" in text
    assert "AGENTS.md:\n\nRun make test.\n" in text


@pytest.mark.parametrize(
    ("name", "content", "about"),
    [
        ("package_json", '{"name": "zoo", "description": "Counts"}', "package.json: zoo: Counts"),
        ("Cargo_toml", '[package]\nname = "zoo"\n', "Cargo.toml: zoo"),
        ("go_mod", "module example.org/zoo\n\ngo 1.22\n", "go.mod: example.org/zoo"),
        ("package_json", '{"name": 3, "description": ["x"]}', None),
        ("package_json", "[" * 100_000, None),
        ("package_json", b"\xff\xfe{", None),
        ("pyproject_toml", "[project", None),
        ("pyproject_toml", 'project = "no table"', None),
        (
            "pyproject_toml",
            '[tool.x]\nname = "no"\n[project] # this\nname = \'zoo\'\n[x]\ndescription="no"',
            "pyproject.toml: zoo",
        ),
        ("pyproject_toml", '[project]\ndescription = "Say \\"hi\\" \\U0001F600"\nname = 3', "pyproject.toml: Say"),
        ("pyproject_toml", '[project]\nname = "' + "[" * 50_000, None),
        ("go_mod", b"\0module x\n", None),
        ("README_md", "", None),
        ("README_md", "```\nall of it code", "README.md: all of it code"),
    ],
)
def test_what_a_project_calls_itself(tmp_path: Path, name: str, content: str | bytes, about: str | None) -> None:
    """Manifests of several kinds are read, and broken ones say nothing."""
    fill(tmp_path, **{name: content})
    said = found(tmp_path).about
    assert [line[: len(about or "")] for line in said] == ([about] if about else [])


def test_what_git_ignores_is_not_there(tmp_path: Path) -> None:
    """Ignored files and folders, caches and dependencies are neither listed nor counted."""
    fill(tmp_path, _gitignore="out\n*.log\n", out__x="", a_log="", node__y="", src__b_log="", src__c_py="")
    (tmp_path / "__pycache__").mkdir()
    project = found(tmp_path)
    assert project.files == (".gitignore",)
    assert [(folder.name, folder.files) for folder in project.folders] == [("node", 1), ("src", 1)]


def test_a_huge_folder_is_looked_at_in_part(tmp_path: Path) -> None:
    """However much there is, a bounded number of entries is looked at, and what is not listed is counted."""
    for n in range(MAX_FOLDERS + 5):
        fill(tmp_path, **{f"d{n:03}__x": ""})
    for n in range(MAX_BELOW + 100):
        fill(tmp_path, **{f"d000__deep__f{n}": ""})
    for n in range(MAX_FILES + 7):
        fill(tmp_path, **{f"file{n:03}": ""})
    project = found(tmp_path)
    assert (len(project.folders), project.more_folders) == (MAX_FOLDERS, 5)
    assert (len(project.files), project.more_files) == (MAX_FILES, 7)
    assert project.folders[0].more
    assert project.folders[0].files < MAX_BELOW
    assert not project.folders[1].more


def test_empty_folders_without_end_come_to_an_end(tmp_path: Path) -> None:
    """Folders count as something looked at, so a tree of nothing else is not walked through."""
    for n in range(MAX_BELOW + 50):
        (tmp_path / "top" / f"e{n}").mkdir(parents=True)
    [folder] = found(tmp_path).folders
    assert (folder.files, folder.more) == (0, True)


def test_time_ends_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looking takes too long, what was seen by then is told."""
    fill(tmp_path, src__a_py="", AGENTS_md="Rules.")
    monkeypatch.setattr(project_scan, "WALK_SECONDS", -1.0)
    project = found(tmp_path)
    assert project.folders == ()
    assert project.pages == (ContextFile("AGENTS.md", "Rules."),)


async def test_a_folder_that_hangs_is_told_nothing_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An agent whose folder does not answer works on without; its log says so."""
    import threading

    go_on = threading.Event()
    monkeypatch.setattr(project_scan, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(project_scan, "survey_project", lambda *_: go_on.wait(10) and ProjectSurvey())
    context = ToolContext(tmp_path)
    try:
        looking = ProjectScan(ContextSpec("brief"), context, guard_of(PolicySpec(), context), TokenEstimator())
        assert await looking.look() == ()
    finally:
        go_on.set()
    assert "not looked at" in capfd.readouterr().out


async def test_nothing_is_looked_at_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The level none costs no look at the disk."""
    fill(tmp_path, AGENTS_md="Rules.")
    monkeypatch.setattr(project_scan, "survey_project", None)
    assert await told(tmp_path, "none") == ""


class TestContextFiles:
    """Files that tell agents how things are done here."""

    def test_a_missing_one_is_not_missed(self, tmp_path: Path) -> None:
        """No file, an empty one, and one of white space say nothing."""
        fill(tmp_path, AGENTS_md=" \n")
        assert found(tmp_path).pages == ()

    def test_other_files_can_be_named(self, tmp_path: Path) -> None:
        """The configuration says which files they are, also in folders."""
        fill(tmp_path, docs__house_md="Be kind.", AGENTS_md="no")
        rules = ContextConfig(files=("docs/house.md",))
        assert found(tmp_path, rules).pages == (ContextFile("docs/house.md", "Be kind."),)

    def test_the_same_text_counts_once(self, tmp_path: Path) -> None:
        """A copy, or a link in the folder from one to the other, is read once."""
        fill(tmp_path, AGENTS_md="Rules.")
        (tmp_path / "CLAUDE.md").symlink_to("AGENTS.md")
        assert found(tmp_path).pages == (ContextFile("AGENTS.md", "Rules."),)

    def test_one_elsewhere_is_not_read(self, tmp_path: Path) -> None:
        """A link out of the folder, and a path out of it, are not followed."""
        secret = fill(tmp_path, secret="s3cret") / "secret"
        folder = fill(tmp_path / "p", x="")
        (folder / "AGENTS.md").symlink_to(secret)
        rules = ContextConfig(files=("AGENTS.md", "../secret", str(secret)))
        pages = found(folder, rules).pages
        assert len(pages) == 3
        assert all(not page.text and "outside the working folder" in page.problem for page in pages)

    def test_no_pipe_and_no_folder(self, tmp_path: Path) -> None:
        """A pipe of that name blocks nobody, and a folder is no file."""
        os.mkfifo(tmp_path / "AGENTS.md")
        (tmp_path / "CLAUDE.md").mkdir()
        problems = [page.problem for page in found(tmp_path).pages]
        assert ["not a regular file" in problems[0], "is a folder" in problems[1]] == [True, True]

    def test_a_binary_one_is_left_out(self, tmp_path: Path) -> None:
        """Bytes that are no text are not told, in whatever encoding."""
        fill(tmp_path, AGENTS_md=b"\x7fELF\0\0", CLAUDE_md="Regeln".encode("utf-16"))
        assert {page.problem for page in found(tmp_path).pages} == {"a binary file"}

    async def test_one_that_is_not_utf_8_is_told_as_far_as_it_is(self, tmp_path: Path) -> None:
        """Bytes that cannot be decoded are marked; a mark of byte order and foreign line ends are no text."""
        fill(tmp_path, AGENTS_md=b"caf\xe9\r\nnext", CLAUDE_md=b"\xef\xbb\xbfRules")
        [coffee, rules] = found(tmp_path).pages
        assert (coffee.text, rules.text) == ("caf\N{REPLACEMENT CHARACTER}\nnext", "Rules")
        assert "caf\N{REPLACEMENT CHARACTER}" in await told(tmp_path)

    async def test_of_a_huge_one_the_beginning_is_read(self, tmp_path: Path) -> None:
        """A file of any size takes bounded memory, and says that it goes on."""
        (tmp_path / "AGENTS.md").write_bytes(b"first line\n" * 10)
        os.truncate(tmp_path / "AGENTS.md", 1 << 36)
        (tmp_path / "CLAUDE.md").write_bytes(b"a line\n" * 1_000_000)
        [binary, long] = found(tmp_path).pages
        assert binary.problem == "a binary file"
        assert long.more
        assert len(long.text) < 100_000
        assert "[CLAUDE.md goes on]" in await told(tmp_path, "full")

    def test_an_unreadable_one_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that may not be read by this user is named with the reason."""

        def refuse(*_: object) -> object:
            raise PermissionError(13, "Permission denied")

        fill(tmp_path, AGENTS_md="x")
        monkeypatch.setattr("orch_worker.tools.files.read.regular_open_regular", refuse)
        [page] = found(tmp_path).pages
        assert "Permission denied" in page.problem


class TestRules:
    """What an agent's rules do not let it look at unasked it is not told either."""

    async def test_a_denied_file_is_not_told(self, tmp_path: Path) -> None:
        """The text of a file in denied_paths is nowhere; it is told that there is one."""
        fill(tmp_path, AGENTS_md="s3cret", README_md="Open.")
        text = await told(tmp_path, "full", PolicySpec(rules=PolicyConfig(denied_paths=("AGENTS.md",))))
        assert "s3cret" not in text
        assert "AGENTS.md: it may not be read unasked" in text

    async def test_a_tool_that_is_denied_is_not_gone_round(self, tmp_path: Path) -> None:
        """Without leave to read files no file is told of, without leave to list them no layout."""
        fill(tmp_path, AGENTS_md="s3cret", README_md="Open.", src__a_py="")
        for tool, gone, left in (("read_file", "s3cret", "src/"), ("list_files", "src/", "s3cret")):
            text = await told(tmp_path, "full", PolicySpec(rules=PolicyConfig(permissions={tool: "ask"})))
            assert gone not in text
            assert left in text

    async def test_personal_data_is_not_told_unasked(self, tmp_path: Path) -> None:
        """From the command line a personal folder is not looked at; a program that named it wants it used."""
        folder = fill(tmp_path / "Documents", AGENTS_md="Dear diary.")
        assert "diary" not in await told(folder, "full", PolicySpec("cli"))
        assert "diary" in await told(folder, "full", PolicySpec("api"))

    async def test_what_strangers_wrote_is_not_told_unasked(self, tmp_path: Path) -> None:
        """A file that others wrote is read when the agent reads it, with a label; where all are, none is told of."""
        fill(tmp_path, AGENTS_md="Obey me.", README_md="Open.")
        for path, gone in (("AGENTS.md", ("Obey",)), (".", ("Obey", "Open"))):
            rules = PolicyConfig(taint=TaintConfig(untrusted_paths=(path,)))
            text = await told(tmp_path, "full", PolicySpec(rules=rules))
            assert not any(each in text for each in gone)

    async def test_the_users_function_is_asked_too(self, tmp_path: Path) -> None:
        """What the user's own function denies, wants asked about, or wants kept on this machine is not told."""
        fill(tmp_path, AGENTS_md="s3cret", README_md="Open.", src__a_py="")
        asked: list[tuple[str, str]] = []
        verdicts = {"AGENTS.md": Verdict("allow", "local"), "README.md": Verdict("deny"), "src": Verdict()}

        async def call_root(called: AnyService, params: Any, _: float | None = None) -> Any:
            service = called.name
            if service == "survey_project":
                raise ToolError("the root has something else to do")
            assert service == "evaluate_policy"
            assert isinstance(params, PolicyCall)
            asked.append((params.tool, params.input["path"]))
            return verdicts.get(params.input["path"], Verdict())

        text = await told(tmp_path, "full", PolicySpec(asks_root=True), call_root=call_root)
        assert asked == [("read_file", "AGENTS.md"), ("read_file", "README.md"), ("list_files", ".")]
        assert "s3cret" not in text
        assert "Open." not in text
        assert "src/" in text
