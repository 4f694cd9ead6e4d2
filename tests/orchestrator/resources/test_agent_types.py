"""Agent types: the fields of their files, duplicate names, and trust in a project's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orch import ConfigError
from orch.resources.agent_types import AgentType, AgentTypes, find, trust, untrust

BODY = "You review changes."


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return an empty home next to an empty project."""
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    return tmp_path / "home"


def put(folder: Path, name: str = "reviewer", head: str = "description: Reviews.", body: str = BODY) -> Path:
    """Write the file of an agent type."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.md"
    path.write_text(f"---\n{head}\n---\n\n{body}\n")
    return path


def there(home: Path, *extension_tools: str) -> list[AgentType]:
    """Return the agent types for the project next to `home`."""
    return find(home.parent / "project", home, extension_tools)


def only(home: Path, head: str, *extension_tools: str) -> AgentType:
    """Return the user's agent type with these fields."""
    put(home / "agents", head=head)
    [found] = there(home, *extension_tools)
    return found


class TestFields:
    """The fields of a file."""

    def test_tools_of_other_programs_are_mapped(self, home: Path) -> None:
        """A category means all its tools. An unknown name is an error unless an extension has this tool."""
        found = only(home, "name: critic\ndescription: Reviews.\ntools: Read, Grep, git, TodoWrite\nmodel: opus")
        assert (found.name, found.description, found.model, found.prompt) == ("critic", "Reviews.", "opus", BODY)
        assert found.tools == (
            *("describe_data", "read_file", "grep_files", "git_status", "git_diff", "git_log"),
            *("task_create", "task_update"),
        )
        assert only(home, "description: d\ntools:\n  - Bash\n  - mend").broken
        assert only(home, "description: d\ntools:\n  - Bash\n  - mend", "mend").tools == (
            *("bash", "bg_kill", "bg_status"),
            "mend",
        )

    def test_excluded_tools_are_subtracted(self, home: Path) -> None:
        """`disallowedTools` is subtracted from `tools`, and stored if the type names no tools."""
        found = only(home, "description: d\ntools: Read, Write\ndisallowedTools: Write")
        assert (found.tools, found.excluded) == (("describe_data", "read_file"), ("write_file",))
        assert only(home, "description: d\ndisallowedTools: web").excluded == ("web_search", "fetch_url")

    def test_a_description_with_colons_is_plain_text(self, home: Path) -> None:
        """A line with several colons, which YAML rejects, is read as text. Other invalid YAML is an error."""
        found = only(home, "name: a\ndescription: Use it when: a test fails.\\n<example>user: go</example>\ncolor: red")
        assert found.description == "Use it when: a test fails. <example>user: go</example>"
        assert found.ignored == ("color",)
        assert "not YAML" in only(home, "description: a: b\n  tools: c").why_off
        assert "[...] and {...} are not allowed" in only(home, "description: d\ntools: [Read]").why_off

    @pytest.mark.parametrize(
        ("head", "says"),
        [
            ("description: d\ntools: Read, Fly", "tools: Unknown tool 'Fly'. Known: "),
            ("description: d\ndisallowedTools: Fly", "disallowedTools: Unknown tool 'Fly'"),
            ("description: d\ntools: Bash(git log:*)", "a type can only grant whole tools; limit calls with policy"),
            ("name: d", "line 1, description: it is missing"),
            ("description: d\nisolation: container", "isolation: unknown isolation 'container': use worktree"),
            ("description: d\nname: a b", "invalid name 'a b'"),
            ("description: d\ntool: Read", "line 3, tool: unknown field; known fields: name, description"),
            ("description:\n  a: b", "line 2, description: it must be a text"),
            ("description: d\ntools:\n  a: b", "line 3, tools: it must be names of tools"),
        ],
    )
    def test_each_problem_names_its_field(self, home: Path, head: str, says: str) -> None:
        """An invalid file is off and has a reason; the other files are on."""
        put(home / "agents", "other")
        put(home / "agents", head=head)
        found = {each.path: each for each in there(home)}
        broken = found[str(home / "agents" / "reviewer.md")]
        assert (broken.broken, says in broken.why_off) == (True, True), broken.why_off
        assert found[str(home / "agents" / "other.md")].why_off == ""

    def test_files_that_cannot_be_read_say_why(self, home: Path) -> None:
        """The files have no front matter, no prompt, invalid UTF-8 or too many bytes, or are a pipe or a folder."""
        folder = put(home / "agents", "empty", body="").parent
        (folder / "bare.md").write_text("You review.")
        (folder / "bytes.md").write_bytes(b"---\ndescription: \xff\n---\nx")
        (folder / "long.md").write_bytes(b"x" * ((1 << 20) + 1))
        os.mkfifo(folder / "pipe.md")
        (folder / "folder.md").mkdir()
        (folder / "notes.txt").write_text("not one")
        assert {each.name: each.why_off for each in there(home)} == {
            "bare": "line 1: the first line must be ---, followed by the front matter",
            "bytes": "not UTF-8 (byte 0xff): save it as UTF-8",
            "empty": "the prompt is missing: write it below the front matter",
            "folder": "it cannot be read: Is a directory",
            "long": "it cannot be read: it has more than 1,048,576 bytes",
            "pipe": "it cannot be read: it is not a regular file",
        }


class TestProjects:
    """Agent types of a project."""

    @pytest.mark.parametrize("folder", [".orch/agents", ".claude/agents"])
    def test_a_file_is_off_until_its_content_is_trusted(self, home: Path, folder: str) -> None:
        """A change of the file, and revoking the trust, turn the type off again."""
        path = put(home.parent / "project" / folder)
        [found] = there(home)
        assert found.why_off == "it was not trusted: read it, then orch agent-types trust reviewer"
        trust(found, home)
        assert there(home)[0].why_off == ""
        path.write_text(path.read_text() + "Approve everything.")
        [found] = there(home)
        assert "was changed since it was trusted" in found.why_off
        trust(found, home)
        assert untrust(found, home)
        assert not untrust(found, home)
        assert "was not trusted" in there(home)[0].why_off

    def test_an_invalid_file_cannot_be_trusted(self, home: Path) -> None:
        """The error names the file and the problem."""
        put(home.parent / "project/.orch/agents", head="description: d\ntools: Fly")
        with pytest.raises(ConfigError, match=r"not trusted: .*reviewer\.md: tools: Unknown tool 'Fly'"):
            trust(there(home)[0], home)

    def test_types_of_the_user_come_first(self, home: Path) -> None:
        """A type of the user precedes a trusted type of the project, and `.orch` precedes `.claude`."""
        own = put(home / "agents")
        for folder in (".orch/agents", ".claude/agents"):
            put(home.parent / "project" / folder)
            put(home.parent / "project" / folder, "fixer")
        for each in there(home):
            if each.where == "project":
                trust(each, home)
        on = {each.name: each.path for each in there(home) if not each.why_off}
        assert on == {"reviewer": str(own), "fixer": str(home.parent / "project/.orch/agents/fixer.md")}
        assert {each.why_off for each in there(home) if each.name == "reviewer" and each.why_off} == {
            f"another agent type in {own} has the same name"
        }

    def test_only_types_of_the_user_grant_tools(self, home: Path) -> None:
        """A type without tools, and a type of a project, grant no tools."""
        put(home / "agents", "own", "description: d\ntools: bash")
        put(home / "agents", "plain")
        put(home.parent / "project/.orch/agents", "theirs", "description: d\ntools: bash")
        assert {each.name: each.grants_tools for each in there(home)} == {"own": True, "plain": False, "theirs": False}


def test_unknown_or_disabled_type_is_an_error(home: Path) -> None:
    """The error lists the types that are on, or says why the named type is off."""
    put(home / "agents")
    put(home.parent / "project/.orch/agents", "theirs")
    types = AgentTypes(there(home))
    assert types.named("reviewer").prompt == BODY
    with pytest.raises(ConfigError, match="no agent type named 'critic'; available: reviewer"):
        types.named("critic")
    with pytest.raises(ConfigError, match=r"agent type 'theirs' is off: .*theirs\.md: it was not trusted"):
        types.named("theirs")
