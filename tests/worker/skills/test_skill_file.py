"""The format of `SKILL.md`: valid files, error messages for invalid files, and agreement with the reference library."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skills_ref import ParseError, read_properties, validate
from skills_ref.parser import parse_frontmatter
from skills_ref.validator import validate_metadata

from orch_protocol.core.errors import ConfigError
from orch_worker.skills.skill_file import MAX_BYTES, body_of, check_skill, parse_skill, read_skill_file

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
    "an unknown field": ("name: ok\ndescription: d\nversion: 1", "line 4, version: unknown field"),
    "a field twice": ("name: ok\nname: ok\ndescription: d", "line 3, name: the field occurs twice"),
    "a colon": ("name: ok\ndescription: a: b", "line 3: not YAML: mapping values are not allowed here"),
    "an open quote": ("name: ok\ndescription: 'd", "line 3: not YAML: found unexpected end of stream"),
    "a tab": ("name: ok\ndescription: d\nmetadata:\n\ta: b", "line 5: not YAML"),
    "braces": ("name: ok\ndescription: d\nmetadata: {a: b}", r"line 4: \[...\] and \{...\} are not allowed"),
    "brackets": ("name: ok\ndescription: d\nallowed-tools: [Read]", "line 4: "),
    "an anchor": ("name: &a ok\ndescription: d", "line 2: anchors and aliases"),
    "an alias": ("name: ok\ndescription: *a", "line 3: anchors and aliases"),
    "a tag": ("name: !!str ok\ndescription: d", "line 2: tags"),
    "no mapping": ("- name\n- description", "line 2: the front matter must consist of lines of the form"),
    "nothing": ("", "the front matter must consist of lines of the form"),
    "a description with parts": ("name: ok\ndescription:\n  a: b", "line 3, description: it must be text"),
    "a compatibility with parts": (
        "name: ok\ndescription: d\ncompatibility:\n  a: b",
        "compatibility: it must be text",
    ),
}
FRAMES = {
    "nothing in front": ("name: ok\ndescription: d\n", "the first line must be ---"),
    "no end": ("---\nname: ok\ndescription: d\n", "the front matter has no end"),
}
STRICTER = {
    "metadata that is no mapping": ("name: ok\ndescription: d\nmetadata: x", "metadata: it must be a mapping"),
    "a license with parts": ("name: ok\ndescription: d\nlicense:\n  a: b", "license: it must be text"),
    "too much": (
        f"name: ok\ndescription: d\nmetadata:\n  a: {'b' * 20_000}",
        "front matter has 20,0.. characters, but at most",
    ),
    "tools with parts": ("name: ok\ndescription: d\nallowed-tools:\n  a: b", "allowed-tools: it must be names"),
}
"""Skills that the format does not allow and that the reference library accepts."""


def put(place: Path, text: str, name: str = "ok") -> Path:
    """Write a skill below `place` and return its folder."""
    folder = place / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_bytes(text.encode())
    return folder


def framed(head: str) -> str:
    """Return the text of a file with that front matter."""
    return f"---\n{head}\n---\nDo it.\n"


class TestAgreement:
    """The parser accepts the skills that the reference library accepts."""

    @pytest.mark.parametrize("case", GOOD)
    def test_valid_skills_are_accepted_like_by_the_reference_library(self, tmp_path: Path, case: str) -> None:
        """Name and description are the same, too."""
        folder = put(tmp_path, framed(GOOD[case]))
        assert validate(folder) == []
        found, theirs = read_skill_file(folder), read_properties(folder)
        assert (found.name, found.description, found.body) == (theirs.name, theirs.description, "Do it.")

    @pytest.mark.parametrize("case", BAD)
    def test_invalid_skills_are_refused_with_line_and_field(self, tmp_path: Path, case: str) -> None:
        """The reference library refuses them, too."""
        head, why = BAD[case]
        folder = put(tmp_path, framed(head))
        assert validate(folder) != []
        with pytest.raises(ConfigError, match=rf"ok/SKILL.md: .*{why}"):
            read_skill_file(folder)

    @pytest.mark.parametrize("case", FRAMES)
    def test_front_matter_must_come_first_between_two_lines(self, tmp_path: Path, case: str) -> None:
        """Other text before it and a missing end are errors."""
        text, why = FRAMES[case]
        folder = put(tmp_path, text)
        assert validate(folder) != []
        with pytest.raises(ConfigError, match=why):
            read_skill_file(folder)

    @pytest.mark.parametrize("name", [*NAMES, *BAD_NAMES])
    def test_skill_names_are_lower_case_letters_digits_and_hyphens(self, tmp_path: Path, name: str) -> None:
        """Letters of any script are allowed, and a name has at most 64 characters."""
        folder = put(tmp_path, framed(f"name: '{name}'\ndescription: d"), name)
        _, problems = check_skill(folder)
        assert (not problems) == (not validate(folder)) == (name in NAMES)

    def test_foreign_line_endings_are_accepted(self, tmp_path: Path) -> None:
        """CR LF is a line end."""
        folder = put(tmp_path, framed(GOOD["plain"]).replace("\n", "\r\n"))
        assert validate(folder) == []
        assert read_skill_file(folder).body == "Do it."

    @pytest.mark.parametrize("case", STRICTER)
    def test_stricter_rules_than_the_reference_library(self, tmp_path: Path, case: str) -> None:
        """Some violations of the format are errors here, although the library accepts them."""
        head, why = STRICTER[case]
        folder = put(tmp_path, framed(head))
        assert validate(folder) == []
        with pytest.raises(ConfigError, match=why):
            read_skill_file(folder)


def test_all_problems_are_reported_in_line_order(tmp_path: Path) -> None:
    """One field can have several problems."""
    _, problems = check_skill(put(tmp_path, framed("name: A_b\nversion: 1\ndescription: ''")))
    assert [(each.line, each.field) for each in problems] == [
        *((2, "name"),) * 3,
        (3, "version"),
        (4, "description"),
    ]


def test_allowed_tools_are_parsed() -> None:
    """Separators are spaces, commas and lines. A pattern is in parentheses."""
    for text in ("Read, Bash(git add:*) Grep", "\n  - Read\n  - Bash(git add:*)\n  - Grep"):
        found, _ = parse_skill(framed(f"name: ok\ndescription: d\nallowed-tools: {text}"), "ok")
        assert found is not None
        assert found.allowed == ("Read", "Bash(git add:*)", "Grep")


def test_unclosed_parenthesis_extends_to_the_end(tmp_path: Path) -> None:
    """The rest of the text is one name."""
    folder = put(tmp_path, framed("name: ok\ndescription: d\nallowed-tools: Read Bash(git a(b a(b"))
    assert read_skill_file(folder).allowed == ("Read", "Bash(git a(b a(b")


def test_undecodable_skill_file_names_the_position(tmp_path: Path) -> None:
    """Invalid characters, a large file and a missing file have error messages, too."""
    folder = put(tmp_path, "")
    (folder / "SKILL.md").write_bytes(b"---\nname: ok\ndescription: \xff\n---\n")
    with pytest.raises(ConfigError, match="line 3: not UTF-8"):
        read_skill_file(folder)
    (folder / "SKILL.md").write_bytes(framed("name: ok\ndescription: \a").encode())
    with pytest.raises(ConfigError, match="not YAML: unacceptable character #x0007"):
        read_skill_file(folder)
    (folder / "SKILL.md").write_bytes(b"x" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="it is over 1 MiB"):
        read_skill_file(folder)
    (folder / "SKILL.md").unlink()
    with pytest.raises(ConfigError, match=r"ok is not a skill: it has no SKILL\.md"):
        read_skill_file(folder)


def test_body_is_read_without_parsing_the_front_matter() -> None:
    """Invalid front matter has no effect."""
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
@settings(max_examples=150, derandomize=True)
def test_any_front_matter_is_accepted_or_reported(lines: list[str]) -> None:
    """Parsing never raises, and the reference library agrees except for stricter rules."""
    text = framed("\n".join(lines))
    found, problems = parse_skill(text, "ok")
    assert (found is None) == bool(problems)
    try:
        wrong = validate_metadata(parse_frontmatter(text)[0], Path("ok"))
    except ParseError as error:
        wrong = [str(error)]
    assert bool(problems) == bool(wrong) or problems[0].field == "metadata"
