"""`SKILL.md`: which files are skills, what is said of those that are not, and that the reference library agrees."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skills_ref import ParseError, read_properties, validate
from skills_ref.parser import parse_frontmatter
from skills_ref.validator import validate_metadata

from orch_protocol.core.errors import ConfigError
from orch_worker.skills.skill_file import MOST_BYTES, body_of, check_skill, parse_skill, read_skill_file

GOOD = {
    "plain": "name: ok\ndescription: d",
    "figures and words are texts": "name: ok\ndescription: null\nmetadata:\n  version: 1.0\n  draft: yes",
    "in quotes": "'name': \"ok\"\ndescription: 'a: b'",
    "over several lines": "name: ok\ndescription: >-\n  a: b\n  c",
    "as it is broken": "name: ok\ndescription: |\n  a: b\n  c",
    "with comments and empty lines": "\n# what\nname: ok # so\n\ndescription: d",
    "an empty license": "name: ok\ndescription: d\nlicense:",
    "all fields": "name: ok\ndescription: d\nlicense: MIT\ncompatibility: needs git\nallowed-tools: Read Bash(git:*)\n"
    "metadata:\n  author: me",
    "tools as lines": "name: ok\ndescription: d\nallowed-tools:\n  - Read\n  - Grep",
    "the longest": f"name: ok\ndescription: {'d' * 1024}\ncompatibility: {'c' * 500}",
    "deeper than it should": "name: ok\ndescription: d\nmetadata:\n  a:\n    b: c",
}
NAMES = ("a", "a1", "1", "a-b-c", "grün", "a" * 64)
BAD_NAMES = ("A", "-a", "a-", "a--b", "a_b", "a.b", "a b", "a" * 65)
BAD = {
    "no description": ("name: ok", "line 1, description: it is missing"),
    "no name": ("description: d", "line 1, name: it is missing"),
    "an empty description": ("name: ok\ndescription: ' '", "line 3, description: it is empty"),
    "a long description": (f"name: ok\ndescription: {'d' * 1025}", "line 3, description: it has 1025 characters"),
    "a long compatibility": (f"name: ok\ndescription: d\ncompatibility: {'c' * 501}", "compatibility: it has 501"),
    "another folder": ("name: other\ndescription: d", "it is 'other' and its folder is called 'ok'"),
    "an unknown field": ("name: ok\ndescription: d\nversion: 1", "line 4, version: there is no such field"),
    "a field twice": ("name: ok\nname: ok\ndescription: d", "line 3, name: it is there twice"),
    "a colon": ("name: ok\ndescription: a: b", "line 3: not YAML: mapping values are not allowed here"),
    "an open quote": ("name: ok\ndescription: 'd", "line 3: not YAML: found unexpected end of stream"),
    "a tab": ("name: ok\ndescription: d\nmetadata:\n\ta: b", "line 5: not YAML"),
    "braces": ("name: ok\ndescription: d\nmetadata: {a: b}", r"line 4: \[...\] and \{...\} are not allowed"),
    "brackets": ("name: ok\ndescription: d\nallowed-tools: [Read]", "line 4: "),
    "an anchor": ("name: &a ok\ndescription: d", "line 2: anchors and aliases"),
    "an alias": ("name: ok\ndescription: *a", "line 3: anchors and aliases"),
    "a tag": ("name: !!str ok\ndescription: d", "line 2: tags"),
    "no mapping": ("- name\n- description", "line 2: the front matter is to be lines of the form"),
    "nothing": ("", "the front matter is to be lines of the form"),
    "a description with parts": ("name: ok\ndescription:\n  a: b", "line 3, description: it is to be text"),
    "a compatibility with parts": (
        "name: ok\ndescription: d\ncompatibility:\n  a: b",
        "compatibility: it is to be text",
    ),
}
FRAMES = {
    "nothing in front": ("name: ok\ndescription: d\n", "the first line is to be ---"),
    "no end": ("---\nname: ok\ndescription: d\n", "the front matter does not end"),
    "a byte order mark": ("\ufeff---\nname: ok\ndescription: d\n---\n", "byte order mark"),
}
STRICTER = {
    "metadata that is no mapping": ("name: ok\ndescription: d\nmetadata: x", "metadata: it is to be a mapping"),
    "a license with parts": ("name: ok\ndescription: d\nlicense:\n  a: b", "license: it is to be text"),
    "too much": (
        f"name: ok\ndescription: d\nmetadata:\n  a: {'b' * 20_000}",
        "front matter has 20,0.. characters: at most",
    ),
    "tools with parts": ("name: ok\ndescription: d\nallowed-tools:\n  a: b", "allowed-tools: it is to be names"),
}
"""What the format rules out, and the reference library lets pass."""


def put(place: Path, text: str, name: str = "ok") -> Path:
    """Write a skill below `place` and return its folder."""
    folder = place / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_bytes(text.encode())
    return folder


def framed(head: str) -> str:
    """Return a file with that front matter."""
    return f"---\n{head}\n---\nDo it.\n"


class TestAgreement:
    """What we take is what the reference library takes."""

    @pytest.mark.parametrize("case", GOOD)
    def test_good_ones(self, tmp_path: Path, case: str) -> None:
        """Both take it, and read the same name and description."""
        folder = put(tmp_path, framed(GOOD[case]))
        assert validate(folder) == []
        found, theirs = read_skill_file(folder), read_properties(folder)
        assert (found.name, found.description, found.body) == (theirs.name, theirs.description, "Do it.")

    @pytest.mark.parametrize("case", BAD)
    def test_bad_ones(self, tmp_path: Path, case: str) -> None:
        """Neither takes it, and we say on which line and in which field."""
        head, why = BAD[case]
        folder = put(tmp_path, framed(head))
        assert validate(folder) != []
        with pytest.raises(ConfigError, match=rf"ok/SKILL.md: .*{why}"):
            read_skill_file(folder)

    @pytest.mark.parametrize("case", FRAMES)
    def test_bad_frames(self, tmp_path: Path, case: str) -> None:
        """Front matter stands first, between two lines."""
        text, why = FRAMES[case]
        folder = put(tmp_path, text)
        assert validate(folder) != []
        with pytest.raises(ConfigError, match=why):
            read_skill_file(folder)

    @pytest.mark.parametrize("name", [*NAMES, *BAD_NAMES])
    def test_names(self, tmp_path: Path, name: str) -> None:
        """Small letters of any script, digits, hyphens between them, at most 64."""
        folder = put(tmp_path, framed(f"name: '{name}'\ndescription: d"), name)
        _, problems = check_skill(folder)
        assert (not problems) == (not validate(folder)) == (name in NAMES)

    def test_line_ends_of_other_systems(self, tmp_path: Path) -> None:
        """They are line ends."""
        folder = put(tmp_path, framed(GOOD["plain"]).replace("\n", "\r\n"))
        assert validate(folder) == []
        assert read_skill_file(folder).body == "Do it."

    @pytest.mark.parametrize("case", STRICTER)
    def test_what_we_do_not_let_pass(self, tmp_path: Path, case: str) -> None:
        """It breaks a rule of the format, though the library takes it."""
        head, why = STRICTER[case]
        folder = put(tmp_path, framed(head))
        assert validate(folder) == []
        with pytest.raises(ConfigError, match=why):
            read_skill_file(folder)


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    """In the order of the lines."""
    _, problems = check_skill(put(tmp_path, framed("name: A_b\nversion: 1\ndescription: ''")))
    assert [(each.line, each.field) for each in problems] == [
        *((2, "name"),) * 3,
        (3, "version"),
        (4, "description"),
    ]


def test_tools_that_it_names() -> None:
    """Apart by spaces or commas, or a line each; what of one is meant stands in parentheses."""
    for said in ("Read, Bash(git add:*) Grep", "\n  - Read\n  - Bash(git add:*)\n  - Grep"):
        found, _ = parse_skill(framed(f"name: ok\ndescription: d\nallowed-tools: {said}"), "ok")
        assert found is not None
        assert found.allowed == ("Read", "Bash(git add:*)", "Grep")


def test_a_parenthesis_that_does_not_close_goes_to_the_end(tmp_path: Path) -> None:
    """It is looked for once, not again from each name behind it: the file may be anybody's."""
    folder = put(tmp_path, framed("name: ok\ndescription: d\nallowed-tools: Read Bash(git a(b a(b"))
    assert read_skill_file(folder).allowed == ("Read", "Bash(git a(b a(b")


def test_what_is_no_text_says_where(tmp_path: Path) -> None:
    """A byte that is not UTF-8, a sign that YAML does not know, a file too long, and no file at all."""
    folder = put(tmp_path, "")
    (folder / "SKILL.md").write_bytes(b"---\nname: ok\ndescription: \xff\n---\n")
    with pytest.raises(ConfigError, match="line 3: not UTF-8"):
        read_skill_file(folder)
    (folder / "SKILL.md").write_bytes(framed("name: ok\ndescription: \a").encode())
    with pytest.raises(ConfigError, match="not YAML: unacceptable character #x0007"):
        read_skill_file(folder)
    (folder / "SKILL.md").write_bytes(b"x" * (MOST_BYTES + 1))
    with pytest.raises(ConfigError, match="it is over 1 MiB"):
        read_skill_file(folder)
    (folder / "SKILL.md").unlink()
    with pytest.raises(ConfigError, match=r"ok is not a skill: it has no SKILL\.md"):
        read_skill_file(folder)


def test_the_body_alone() -> None:
    """Without reading what stands above it."""
    assert body_of(framed(": : :")) == "Do it."
    assert body_of("Do it.\n") == "Do it."


LINES = (
    *("name: ok", "description: d", "name: other", "name:", "'name': ok", "description: |", "description: 'a", "b'"),
    *(
        "metadata:",
        "  a: b",
        "  - c",
        "    d: e",
        "- z",
        "? q",
        ": r",
        "{a: b}",
        "[x]",
        "&a x",
        "*a",
        "!t x",
        "# c",
        "",
    ),
    *("description: a: b", "description: a #b", "\tx", 'compatibility: "q"', "1: 2", "%YAML 1.1", "description: @x"),
)


@given(st.lists(st.sampled_from(LINES), max_size=6))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_front_matter_is_taken_or_told_of(lines: list[str]) -> None:
    """Never an error of its own; and the reference library says the same, but for what it lets pass."""
    text = framed("\n".join(lines))
    found, problems = parse_skill(text, "ok")
    assert (found is None) == bool(problems)
    try:
        wrong = validate_metadata(parse_frontmatter(text)[0], Path("ok"))
    except ParseError as error:
        wrong = [str(error)]
    assert bool(problems) == bool(wrong) or problems[0].field == "metadata"
