"""`read_file`, `list_files` and `grep_files` on real folders."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from orch_protocol.core.messages import Image
from orch_worker.tools.api.base import Tool, ToolContext, ToolError
from orch_worker.tools.files.gitignore import glob_regex
from orch_worker.tools.files.patterns import harmless_length
from orch_worker.tools.files.read import grep_files, list_files, read_file
from pictures import png


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project with source files, ignored files, caches and dependencies."""
    files = {
        "README.md": "# Title\n\nThe answer is 42.\n",
        "src/app.py": "def answer() -> int:\n    return 42\n",
        "src/util.py": "ANSWER = 42\n",
        "src/deep/er/notes.txt": "nothing\n",
        "build/out.py": "answer\n",
        "logs/a.log": "answer\n",
        "logs/keep.log": "answer kept\n",
        ".git/config": "answer\n",
        "node_modules/x/index.js": "answer\n",
        "src/__pycache__/app.pyc": "answer\n",
        ".gitignore": "# made\nbuild/\n*.log\n!keep.log\n",
        ".github/ci.yml": "run: answer\n",
    }
    for name, content in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "project"


async def run(tool: Tool, cwd: Path, seconds: float = 60.0, **input: Any) -> str:
    """Return the text of the result of one call in the folder `cwd`."""
    return (await tool.run(ToolContext(cwd, seconds=seconds), input)).text


class TestReadFile:
    async def test_lines_are_numbered(self, project: Path) -> None:
        """Each line is shown after its number and a tab."""
        assert await run(read_file, project, path="src/app.py") == (
            "     1\tdef answer() -> int:\n     2\t    return 42"
        )

    async def test_offset_and_limit_select_lines(self, project: Path) -> None:
        """If lines remain, the result names the offset at which to continue."""
        (project / "long.txt").write_text("".join(f"line {number}\n" for number in range(1, 11)))
        assert await run(read_file, project, path="long.txt", offset=3, limit=2) == (
            "     3\tline 3\n     4\tline 4\n[more lines follow: go on with offset=5]"
        )
        assert (await run(read_file, project, path="long.txt", offset=9)).endswith("    10\tline 10")
        assert await run(read_file, project, path="long.txt", offset=11) == "[long.txt has 10 lines, none from 11 on]"

    async def test_large_file_is_read_in_parts(self, project: Path) -> None:
        """The parts that follow the named offsets give the complete file."""
        lines = [f"{number} {'x' * 200}" for number in range(1, 1001)]
        (project / "large.txt").write_text("\n".join(lines))
        offset, seen = 1, list[str]()
        while True:
            *shown, last = (await run(read_file, project, path="large.txt", offset=offset)).split("\n")
            seen += [line.partition("\t")[2] for line in shown]
            if not last.startswith("[more lines follow"):
                seen.append(last.partition("\t")[2])
                break
            offset = int(last.rpartition("=")[2].rstrip("]"))
        assert seen == lines

    async def test_long_lines_are_cut_without_shifting_line_numbers(self, project: Path) -> None:
        """A very long line is cut, and the next line keeps its correct number."""
        (project / "wide.txt").write_text(f"{'x' * 100_000}\nsecond\n")
        first, second = (await run(read_file, project, path="wide.txt")).split("\n")
        assert first.endswith("x [line cut]")
        assert len(first) < 2_100
        assert second == "     2\tsecond"

    async def test_invalid_utf8_is_replaced_and_reported(self, project: Path) -> None:
        """Bytes that are not UTF-8 are shown as replacement characters, and a note explains them."""
        (project / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
        assert await run(read_file, project, path="latin.txt") == (
            "     1\tcaf\N{REPLACEMENT CHARACTER}\n"
            "[not all of it is UTF-8: undecodable bytes are shown as \N{REPLACEMENT CHARACTER}]"
        )

    async def test_byte_order_mark_and_carriage_returns_are_removed(self, project: Path) -> None:
        """The shown lines contain neither the byte order mark nor carriage returns."""
        (project / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
        assert await run(read_file, project, path="dos.txt") == "     1\tone\n     2\ttwo"

    async def test_empty(self, project: Path) -> None:
        """The result for an empty file says that the file is empty."""
        (project / "empty").touch()
        assert await run(read_file, project, path="empty") == "[empty is empty]"

    async def test_image_files_are_returned_as_images(self, project: Path) -> None:
        """A file with the content of an image is returned as an image, regardless of its name."""
        (project / "src/plot.dat").write_bytes(png(3, 2))
        shown = await read_file.run(ToolContext(project), {"path": "src/plot.dat"})
        assert (shown.text, shown.images) == (
            "[image: plot.dat, 3x2]",
            (Image.from_bytes(png(3, 2), "plot.dat"),),
        )

    async def test_large_images_are_not_returned(self, project: Path) -> None:
        """An image over the size limit is an error that gives the limit."""
        (project / "plot.png").write_bytes(png(3, 2, 4_000_000))
        with pytest.raises(ToolError, match=r"'plot.png' is an image of 4,000,\d+ bytes; at most 3,932,160 bytes"):
            await run(read_file, project, path="plot.png")

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("src", "'src' is a folder: use list_files"),
            ("blob", "'blob' is a binary file of 3 bytes"),
            ("pipe", "'pipe' is not a regular file"),
            ("README.mdx", r"'README.mdx' does not exist. Did you mean 'README.md'\?"),
            ("no/such/thing", "'no/such/thing' does not exist"),
            ("../secret", "'../secret' is outside the working folder"),
            ("/etc/passwd", "outside the working folder"),
            ("link", "'link' is outside the working folder"),
            ("loop", "'loop'"),
            ("a\0b", "is not a path"),
            ("x" * 5000, "cannot be read|is not a path"),
        ],
    )
    async def test_refusals(self, project: Path, path: str, message: str) -> None:
        """A path that is not a text file inside the working folder is an error with the reason."""
        (project / "blob").write_bytes(b"a\0b")
        (project.parent / "secret").write_text("s")
        os.mkfifo(project / "pipe")
        (project / "link").symlink_to(project.parent / "secret")
        (project / "loop").symlink_to("loop")
        with pytest.raises(ToolError, match=message):
            await run(read_file, project, path=path)

    async def test_suggested_name_can_be_opened(self, project: Path) -> None:
        """A name that is not UTF-8 is suggested in the form that the tools accept."""
        (project / os.fsdecode(b"caf\xe9.txt")).write_text("here")
        with pytest.raises(ToolError) as caught:
            await run(read_file, project, path="cafe.txt")
        suggested = str(caught.value).split("Did you mean '")[1].split("'")[0]
        assert suggested == r"caf\xe9.txt"
        assert "here" in await run(read_file, project, path=suggested)

    async def test_permission_error_is_reported(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that cannot be opened is an error with the reason of the system."""

        def refuse(*_: object, **__: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(ToolError, match=r"'README.md' cannot be read: Permission denied"):
            await run(read_file, project, path="README.md")

    async def test_link_inside_is_followed(self, project: Path) -> None:
        """A link to a file inside the working folder shows the content of its target."""
        (project / "alias").symlink_to("src/util.py")
        assert await run(read_file, project, path="alias") == "     1\tANSWER = 42"

    async def test_paths_are_relative_to_the_agents_folder(
        self, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The working directory of the process does not change which file a path names."""
        monkeypatch.chdir("/")
        assert "ANSWER" in await run(read_file, project, path="src/util.py")


class TestListFiles:
    async def test_list_is_sorted_and_skips_ignored_files(self, project: Path) -> None:
        """The list shows files before subfolders and leaves out ignored files, caches and dependencies."""
        assert (await run(list_files, project)).split("\n") == [
            ".gitignore",
            "README.md",
            ".github/ci.yml",
            "logs/keep.log",
            "src/app.py",
            "src/util.py",
            "src/deep/er/notes.txt",
        ]

    async def test_folder_and_pattern_narrow_the_list(self, project: Path) -> None:
        """`path` and `glob` narrow the list, and the listed paths stay relative to the agent's folder."""
        assert await run(list_files, project, path="src", glob="*.py") == "src/app.py\nsrc/util.py"
        assert await run(list_files, project, glob="src/*") == "src/app.py\nsrc/util.py"
        assert await run(list_files, project, glob="src/**") == "src/app.py\nsrc/util.py\nsrc/deep/er/notes.txt"
        assert await run(list_files, project, path="README.md") == "README.md"

    async def test_ignore_rules_of_parent_folders_apply(self, project: Path) -> None:
        """A list of a subfolder leaves out files that the `.gitignore` of the parent folder ignores."""
        assert await run(list_files, project, path="logs") == "logs/keep.log"

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    async def test_first_line_of_an_ignore_file_counts_in_every_encoding(
        self, tmp_path: Path, encoding: str, end: str
    ) -> None:
        """Editors write byte order marks and other line ends. Without this, a secret file would be listed and found."""
        (tmp_path / ".gitignore").write_bytes(f".env{end}*.key{end}".encode(encoding))
        for name in (".env", "a.key", "a.txt"):
            (tmp_path / name).write_text("secret\n")
        assert await run(list_files, tmp_path) == ".gitignore\na.txt"
        assert await run(grep_files, tmp_path, pattern="secret") == "a.txt:1: secret"

    async def test_each_listed_name_is_one_line_and_can_be_read(self, tmp_path: Path) -> None:
        """Names with newlines, control characters and bytes that are not UTF-8 are escaped."""
        (tmp_path / "d\udce9").mkdir()
        names = ["a\nREADME.md", "b\x1b[31m", "caf\udce9", "c\\nd", "d\udce9/e\r", "e\N{COMBINING ACUTE ACCENT}"]
        for name in names:
            (tmp_path / name).write_text(repr(name))
        listed = (await run(list_files, tmp_path)).split("\n")
        assert [(await run(read_file, tmp_path, path=name)).partition("\t")[2] for name in listed] == [
            repr(name) for name in sorted(names, key=lambda name: ("/" in name, name))
        ]
        assert listed[0] == "a\\nREADME.md"
        assert await run(list_files, tmp_path, path="d\\xe9") == "d\\xe9/e\\r"

    async def test_composed_and_decomposed_accents_are_the_same_name(self, tmp_path: Path) -> None:
        """In a path and in a pattern."""
        (tmp_path / "e\N{COMBINING ACUTE ACCENT}.txt").write_text("decomposed")
        for name in ("\N{LATIN SMALL LETTER E WITH ACUTE}.txt", "e\N{COMBINING ACUTE ACCENT}.txt"):
            assert await run(read_file, tmp_path, path=name) == "     1\tdecomposed"
            assert await run(list_files, tmp_path, glob=name) == "e\N{COMBINING ACUTE ACCENT}.txt"

    async def test_nested_ignore_rules_take_precedence(self, project: Path) -> None:
        """A `.gitignore` in a subfolder overrides parent rules, and a rule with a leading slash is anchored."""
        (project / "src/.gitignore").write_text("/util.py\n!*.log\n")
        (project / "src/x.log").touch()
        (project / "src/deep/util.py").touch()
        listed = (await run(list_files, project, path="src")).split("\n")
        assert listed == [
            "src/.gitignore",
            "src/app.py",
            "src/x.log",
            "src/deep/util.py",
            "src/deep/er/notes.txt",
        ]

    async def test_bounded(self, project: Path) -> None:
        """After `max_results` files, the list only counts the remaining files."""
        assert await run(list_files, project, max_results=2) == (
            ".gitignore\nREADME.md\n[5 more files; narrow with path or glob]"
        )

    async def test_nothing(self, project: Path) -> None:
        """An empty list names the folder and the pattern of the call."""
        assert await run(list_files, project, path="src", glob="*.rs") == "No files below 'src' match '*.rs'."

    async def test_links_to_folders_are_not_followed(self, project: Path) -> None:
        """A link to a parent folder does not make the list endless."""
        (project / "src/up").symlink_to("..")
        assert (await run(list_files, project, path="src")).count("app.py") == 1

    async def test_out_of_time(self, project: Path) -> None:
        """If the time limit is reached, the list says that not every folder was seen."""
        assert "[time was up before every folder was seen]" in await run(list_files, project, seconds=-1.0)

    @pytest.mark.parametrize("path", ["..", "nowhere"])
    async def test_refusals(self, project: Path, path: str) -> None:
        """A path outside the working folder or to a missing folder is an error."""
        with pytest.raises(ToolError, match=r"outside|does not exist"):
            await run(list_files, project, path=path)


class TestGrepFiles:
    async def test_file_line_text(self, project: Path) -> None:
        """Each match is shown as `file:line: text`, and ignored files are not searched."""
        assert await run(grep_files, project, pattern=r"answer|\b42") == (
            "README.md:3: The answer is 42.\n"
            ".github/ci.yml:1: run: answer\n"
            "logs/keep.log:1: answer kept\n"
            "src/app.py:1: def answer() -> int:\n"
            "src/app.py:2:     return 42\n"
            "src/util.py:1: ANSWER = 42"
        )

    async def test_narrowed(self, project: Path) -> None:
        """The search is case-sensitive unless `ignore_case` is set, and `path` and `glob` narrow it."""
        assert await run(grep_files, project, pattern="ANSWER") == "src/util.py:1: ANSWER = 42"
        assert await run(grep_files, project, pattern="^answer", ignore_case=True, glob="*.py") == (
            "src/util.py:1: ANSWER = 42"
        )
        assert await run(grep_files, project, pattern="4.", path="src/app.py") == "src/app.py:2:     return 42"

    async def test_bounded(self, project: Path) -> None:
        """`max_per_file` and `max_results` limit the matches, and a search that was stopped says so."""
        assert await run(grep_files, project, pattern="4|d", path="src", glob="app.py", max_per_file=1) == (
            "src/app.py:1: def answer() -> int:"
        )
        found = await run(grep_files, project, pattern="answer", max_results=1)
        assert found.startswith("README.md:3: The answer is 42.\n[stopped at so many results")

    async def test_nothing(self, project: Path) -> None:
        """The result of a search without matches gives the number of searched files."""
        assert await run(grep_files, project, pattern="zebra") == "No match for 'zebra' in 7 text files."

    async def test_long_lines_are_cut_around_the_match(self, project: Path) -> None:
        """Only the text around the match is shown of a very long line."""
        (project / "min.js").write_text(f"{'x' * 5000}needle{'y' * 5000}")
        found = await run(grep_files, project, pattern="needle")
        assert "xneedley" in found
        assert len(found) < 400

    async def test_binary_large_and_special_files_are_skipped(self, project: Path) -> None:
        """The result counts the files that are too large to be searched."""
        (project / "blob").write_bytes(b"answer\0")
        os.mkfifo(project / "pipe")
        with (project / "huge.txt").open("wb") as file:
            file.truncate(5_000_001)
        found = await run(grep_files, project, pattern="answer", glob="[bhp]*")
        assert found == "No match for 'answer' in 0 text files.\n[1 files over 5 MB not searched]"

    async def test_line_numbers_match_read_file(self, project: Path) -> None:
        """Byte order marks and carriage returns are not part of a line.

        Empty files, binary files and links to the outside have no lines.
        """
        (project / "bom.txt").write_bytes(b"\xef\xbb\xbfhello\r\n\r\nworld\r\n")
        (project / "none.txt").touch()
        (project / "blob.txt").write_bytes(b"\0")
        (project / "away.txt").symlink_to("/etc/passwd")
        found = await run(grep_files, project, pattern="^hello$|^$|^world$", glob="*.txt")
        assert found == "bom.txt:1: hello\nbom.txt:2: \nbom.txt:3: world"

    async def test_newline_in_a_name_forges_no_match(self, tmp_path: Path) -> None:
        """The name is escaped, and the escaped path leads to the file."""
        (tmp_path / "a\nREADME.md:1: fine").write_text("answer\n")
        assert await run(grep_files, tmp_path, pattern="answer") == "a\\nREADME.md:1: fine:1: answer"
        assert await run(grep_files, tmp_path, pattern="answer", path="a\\nREADME.md:1: fine") == (
            "a\\nREADME.md:1: fine:1: answer"
        )

    async def test_braces_match_alternatives(self, project: Path) -> None:
        """Braces can be nested, match a name with literal braces, and give at most 100 alternatives."""
        (project / "{a,b}.c").write_text("answer\n")
        found = await run(grep_files, project, pattern="answer", glob="src/*.{p{y,z},md}")
        assert found == "src/app.py:1: def answer() -> int:"
        assert await run(list_files, project, glob="{a,b}.[ch]") == "{a,b}.c"
        assert await run(list_files, project, glob="*.{md,yml}") == "README.md\n.github/ci.yml"
        with pytest.raises(ToolError, match="more than 100 alternatives"):
            await run(list_files, project, glob="{a,b}" * 8)

    async def test_out_of_time(self, project: Path) -> None:
        """If the time limit is reached, the result says that not every file was searched."""
        found = await run(grep_files, project, pattern="answer", seconds=-1.0)
        assert "\n[time was up before every file was searched]" in found

    async def test_bad_pattern(self, project: Path) -> None:
        """An invalid regular expression is an error that suggests a backslash."""
        with pytest.raises(ToolError, match=r"is not a regular expression: .*put a backslash"):
            await run(grep_files, project, pattern="(")


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(a+)+",
            "(a*)*",
            r"(?:\w+\s?)*x",
            "((ab+)c)+",
            "(a{2,})*",
            "(a+){3,}",
            "(a+?)*?",
            r"([)]\d+)*",
            "(?P<x>a+)+",
        ),
        *("(a|a)*b", r"(.|\s)*x", "(x?x)*y", "(a?){40}a{40}", "x?" * 40 + "x" * 40, "(?x)a #(\n+b", r"(\(+)*"),
        *("((?#c)a+)+", "((?:a+)(?#c))+", "((?P<y>a)(?P=y)?a*)*", "(?x:(a+) +)b", "(?ix-s:(a+) +)b"),
    ],
)
def test_backtracking_prone_patterns_search_short_lines_only(pattern: str) -> None:
    """A pattern that repeats an ambiguous group is applied to lines of at most 15 characters."""
    assert harmless_length(re.compile(pattern)) <= 15


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        *((each, 8000) for each in ("foo", "a.b", "foo.*bar", "(ab)+", "(a+)?", "[(a+)]+", "(a{2})+", "a{", "a|b*|c")),
        *((each, 8000) for each in ("(?#x)a", "(?P<x>a+)x", "(?i)ax", "(?P<y>x)(?P=y)", r"\(?x")),
        *(("a+b+", 1000), (r"\(a+\)+", 1000), (r"def \w+\(.*\):", 500), (r"\w+\s*=\s*\d+", 60)),
    ],
)
def test_more_repeats_allow_only_shorter_lines(pattern: str, length: int) -> None:
    """The maximum length of a searched line depends on the number of repeats in the pattern."""
    assert harmless_length(re.compile(pattern)) == length


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a/b.py", True),
        ("*.py", "a/b.pyc", False),
        ("a/*.py", "a/b.py", True),
        ("a/*.py", "x/a/b.py", False),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/x/y/c", True),
        ("**/c", "c", True),
        ("a/**", "a/b/c", True),
        ("/a", "a", True),
        ("/a", "b/a", False),
        ("?.[ch]", "x.c", True),
        ("[!a]", "a", False),
        ("[^a]", "b", True),
        (r"\*", "*", True),
        (r"\*", "x", False),
        ("[", "[", True),
        ("[z-a]", "[z-a]", True),
        ("a+b", "a+b", True),
        ("a[!x]b", "a/b", False),
        ("a**/b", "ax/b", True),
        ("a**/b", "a/x/b", False),
        ("**/b/**/*c*/d", "a/b/b/xcx/d", True),
        ("src/**.py", "src/a/b.py", True),
        ("*a*b*a", "abba/xaxbxa", True),
        ("**/**/c", "c", True),
        ("a/**/**/c", "a/c", True),
        ("a/**/**/c", "a/x/c", True),
        ("***/c", "a/b/c", True),
        (r"\***/c", "*a/c", True),
    ],
)
def test_name_patterns_follow_git(pattern: str, path: str, matches: bool) -> None:
    """A pattern matches the same paths as in git, and an invalid pattern matches its literal text."""
    assert bool(glob_regex(pattern).fullmatch(path)) is matches


async def test_similar_names_come_from_inside_the_folder_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error suggests no name from outside the working folder, even if a folder was exchanged for a link."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("no")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "sub").symlink_to(tmp_path / "outside")
    monkeypatch.setattr("orch_worker.tools.files.read.path_inside", lambda context, path: context.cwd / path)
    with pytest.raises(ToolError) as caught:
        await run(read_file, tmp_path / "cwd", path="sub/secret.tx")
    assert str(caught.value) == "'sub/secret.tx' does not exist."


@pytest.mark.parametrize("pattern", ["*a" * 100 + "b", "**/a/" * 50 + "b", "**a" * 60 + "b", "*?" * 100 + "b"])
def test_hostile_gitignore_pattern_is_matched_in_bounded_time(pattern: str) -> None:
    """A pattern with many stars does not try all combinations on a long name, because a repository may be hostile."""
    assert not glob_regex(pattern).fullmatch("a" * 255)
    assert not glob_regex(pattern).fullmatch("a/" * 64)


async def test_number_of_gitignore_rules_is_bounded(tmp_path: Path) -> None:
    """If one or several `.gitignore` files contain too many rules, only the first rules apply."""
    (tmp_path / "src/made").mkdir(parents=True)
    for name in ("a0", "a899", "a1001", "src/b0", "src/b150", "src/made/c0"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("".join(f"a{number}\n" for number in range(900)))
    (tmp_path / "src/.gitignore").write_text("".join(f"b{number}\n" for number in range(9_000)))
    (tmp_path / "src/made/.gitignore").write_text("c0\n")
    listed = await run(list_files, tmp_path)
    assert listed.split() == [".gitignore", "a1001", "src/.gitignore", "src/b150", "src/made/.gitignore", "src/made/c0"]
