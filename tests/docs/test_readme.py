"""Every fenced block of README.md, CONTRIBUTING.md and docs/ is run, or compared with the commands of CI.

The language of a fence selects the check:

    python    a program. A line that ends in `# -> text` prints `text`, in which `...` matches any text. If the language
              is followed by the name of a framework, frameworks/test_NAME.py runs the program in the framework's venv.
    console   lines `$ command`, each followed by its output. A line `...` matches any lines, `...` in a line matches
              any text, two spaces match any number of spaces, and `? 3` is the exit code 3. Standard error is not
              compared.
    sh        commands for the reader's machine. Each line is a command of the Makefile or of CI.
    toml      a configuration file that `orch config show` accepts. With [permissions], the manifest of an extension.
    json      one JSON value in the block, or one JSON value in each line.
    ipython   a cell of a notebook. integration/test_notebook.py runs the cells of docs/start/notebook.md.
    text      text that is not run.

The blocks of a page run in order, in one temporary folder and with one temporary ORCH_HOME, and leave no process
behind. A program that imports an SDK gets the address of a strict model server, which must not refuse a request.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec import Struct

from frameworks.run import FRAMEWORKS
from orch_protocol.resources.extensions import Manifest
from source_tree import PACKAGES, ROOT
from wire.model_server_beside import Apart, reads_files

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "console", "sh", "toml", "ipython", "json", "text"}
SECONDS = 50
ITEM = re.compile(r"[> ]*(?:[-*+]|\d+[.)]) +")
"""The begin of a list item, before its text."""
FENCE = re.compile(rf"(?P<prefix>[>\s]*(?:{ITEM.pattern})*[>\s]*)(?P<mark>`{{3,}}|~{{3,}})(?P<language>[^`]*)")
"""The first line of a block. Its prefix contains the quote marks, list markers and spaces before the fence."""
SDK = re.compile(r"^import (anthropic|openai)$", re.MULTILINE)


class Block(Struct, frozen=True):
    """A fenced block: the line of its fence in the page, its language and its text."""

    line: int
    language: str
    text: str


class Command(Struct, frozen=True):
    """A command of a console block, its expected output and its expected exit code."""

    line: str
    output: str
    code: int


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of the markdown `page`, also those inside lists and quotes.

    Raises AssertionError for a fence without an end, for a fence inside a line, and for code without a fence.
    """
    found: list[Block] = []
    fence: re.Match[str] | None = None
    start, lines, prefix = 0, list[str](), ""
    indent, is_after_blank = 0, False
    for number, line in enumerate(page.splitlines(), 1):
        if fence is None:
            bare = line.lstrip("> ")
            assert not (is_after_blank and bare and len(line) - len(bare) >= indent + 4), f"line {number} needs a fence"
            is_after_blank = not bare
            if bare and not line.startswith(" "):
                indent = 0
            if item := ITEM.match(line):
                indent = item.end()
            if fence := FENCE.fullmatch(line):
                start, lines, prefix = number, [], re.sub(r"[^\s>]", " ", fence["prefix"])
            assert fence or not re.search("```|~~~", line), f"the fence in line {number} must begin the line"
        elif not line.startswith(prefix):
            assert prefix.startswith(line), f"the fence at line {start} is never closed: line {number} is outside"
            lines.append("")
        elif re.fullmatch(rf"{fence['mark']}{fence['mark'][0]}* *", text := line[len(prefix) :]):
            found.append(Block(start, fence["language"].strip(), "".join(f"{each}\n" for each in lines)))
            fence, is_after_blank = None, False
        else:
            lines.append(text)
    assert fence is None, f"the fence at line {start} is never closed"
    return found


def commands(text: str) -> list[Command]:
    """Return the commands of a console block."""
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], "", 0))
        else:
            last = found.pop()
            if line.startswith("? "):
                found.append(Command(last.line, last.output, int(line[2:])))
            elif last.line.endswith("\\"):
                found.append(Command(f"{last.line}\n{line.removeprefix('> ')}", "", 0))
            else:
                found.append(Command(last.line, f"{last.output}{line}\n", last.code))
    return found


def expected(program: str) -> str:
    """Return the output that the `# ->` comments of a python block state."""
    return "".join(f"{match[1]}\n" for match in re.finditer(r"# -> (.*)$", program, re.MULTILINE))


def matches(pattern: str, text: str) -> bool:
    """Return whether `text` matches `pattern`, in which `...` matches any text and a line `...` matches any lines."""
    regex = ""
    for line in pattern.splitlines():
        literal = re.sub(r"(\\ ){2,}", " +", re.escape(line).replace(r"\.\.\.", ".*?"))
        regex += r"(?:.*\n)*?" if line == "..." else rf"{literal}[ ]*\n"
    return re.fullmatch(regex, text) is not None


class Reader:
    """A reader who runs the commands of a page, in a temporary folder and with a temporary home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.home = folder / "home"
        self.folder.mkdir()
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        roots = os.pathsep.join(str(ROOT / holder) for holder in PACKAGES.values())
        tools = folder / "bin"
        tools.mkdir()
        orch = tools / "orch"
        main = "import sys; from orch.cli import main; sys.exit(main())"
        orch.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -c {shlex.quote(main)} "$@"\n')
        orch.chmod(0o700)
        path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
        self.env = kept | {"PATH": path, "HOME": str(folder), "ORCH_HOME": str(self.home), "PYTHONPATH": roots}

    def run(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `argv` with the reader's environment and the variables `env`, and return the result."""
        return subprocess.run(
            argv,
            cwd=self.folder,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            start_new_session=True,  # without a terminal, on which orch would ask for approvals
        )

    def left(self) -> list[psutil.Process]:
        """Return the processes whose environment contains this reader's home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("ORCH_HOME") == self.env["ORCH_HOME"]:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader. After the test, the daemon is stopped, and no process may be left."""
    someone = Reader(tmp_path)
    yield someone
    if someone.home.exists():
        someone.run("orch", "daemon", "stop")
    left = someone.left()
    for process in left:
        process.kill()
    assert left == []


def run_python(block: Block, reader: Reader, where: str) -> None:
    """Run a python block and compare its output with its comments."""
    program = reader.folder.parent / f"block_{block.line}.py"
    program.write_text(block.text)
    argv = (sys.executable, "-P", "-W", "error", str(program))
    if SDK.search(block.text):
        with Apart(reads_files) as apart:
            done = reader.run(*argv, **apart.env)
        assert apart.server.refused == [], where
        assert apart.server.requests, f"{where}: the model was never asked"
    else:
        done = reader.run(*argv)
    assert done.returncode == 0, f"{where}: {done.stderr}"
    assert matches(expected(block.text), done.stdout), f"{where} printed:\n{done.stdout}"


def run_console(block: Block, reader: Reader, where: str) -> None:
    """Run a console block, command by command."""
    for command in commands(block.text):
        done = reader.run("sh", "-c", command.line)
        assert done.returncode == command.code, f"{where}: {command.line} exited {done.returncode}: {done.stderr}"
        assert matches(command.output, done.stdout), f"{where}: {command.line} printed:\n{done.stdout}"


def check_sh(block: Block, where: str) -> None:
    """Check that CI runs each line: a target of the Makefile, or a command of a target."""
    called = set(re.findall(r"\bmake ([a-z ]+?)(?= [A-Z2&|]|$)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE))
    targets = {word for call in called for word in call.split()}
    plan = subprocess.run(
        ["make", "-n", "-B", "VENV=.venv", "PYTHON=python3", *sorted(targets)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "VENV", "PIP_"))},
        capture_output=True,
        text=True,
        check=True,
    )
    run = {
        re.sub(r" --(quiet|clear|disable-pip-version-check)\b", "", line).strip() for line in plan.stdout.splitlines()
    }
    for line in filter(None, map(str.strip, block.text.splitlines())):
        word, _, target = line.partition(" ")
        assert (word == "make" and target in targets) or line in run, f"{where}: CI does not run {line!r}"


def check_toml(block: Block, reader: Reader, where: str) -> None:
    """Check that the block is a valid configuration, or a valid manifest of an extension."""
    if "[permissions]" in block.text:
        msgspec.toml.decode(block.text, type=Manifest)
        return
    reader.home.mkdir(exist_ok=True)
    file = reader.home / "config.toml"
    file.write_text(block.text)
    done = reader.run("orch", "config", "show")
    file.unlink()
    assert done.returncode == 0, f"{where}: {done.stderr}"


def check_page(page: Path, name: str, reader: Reader) -> None:
    """Run or check each block of the page `page`. Errors contain its `name`."""
    for block in blocks(page.read_text()):
        where = f"{name}:{block.line}"
        language, _, framework = block.language.partition(" ")
        assert language in LANGUAGES, f"{where}: a fence must say its language, one of {sorted(LANGUAGES)}"
        if framework:
            assert (language, framework in FRAMEWORKS) == ("python", True), f"{where}: no framework {framework!r}"
            continue
        match language:
            case "python":
                run_python(block, reader, where)
            case "console":
                run_console(block, reader, where)
            case "sh":
                check_sh(block, where)
            case "toml":
                check_toml(block, reader, where)
            case "json":
                for value in [block.text] if block.text.startswith(("{\n", "[\n")) else block.text.splitlines():
                    json.loads(value)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_does_what_it_says(page: Path, reader: Reader) -> None:
    """Programs and commands print the output that the page shows, and CI runs the shell commands."""
    check_page(page, str(page.relative_to(ROOT)), reader)


def test_blocks_are_found_with_line_and_language() -> None:
    """A block begins at its fence and ends at the next fence. A fence without an end is an error."""
    page = "text\n```python\nprint(1)\n```\n\n```\nx\n```\n"
    assert blocks(page) == [Block(2, "python", "print(1)\n"), Block(6, "", "x\n")]
    with pytest.raises(AssertionError, match="line 1 is never closed"):
        blocks("```sh\nmake\n")


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("- text:\n\n  ```python\n  if 1:\n\n      print(1)\n  ```\n- more\n", 3),
        ("1. text\n   - text\n     ~~~~python\n     if 1:\n\n         print(1)\n     ~~~~\n", 3),
        ("12. ```python\n    if 1:\n    \n        print(1)\n    ```\n", 1),
        ("> text\n> ```python\n> if 1:\n>\n>     print(1)\n> ```\n", 2),
        ("- > text\n  >\n  > ```python\n  > if 1:\n  >\n  >     print(1)\n  > ```\n", 3),
        ("| a |\n|---|\n| b |\n  ```python\n  if 1:\n\n      print(1)\n  ```\n", 4),
    ],
)
def test_blocks_inside_lists_and_quotes_are_found(page: str, line: int) -> None:
    """The text of the block is without the indentation and the quote marks of its fence."""
    assert blocks(page) == [Block(line, "python", "if 1:\n\n    print(1)\n")]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("- text\n  ```sh\n  make\nText outside the list.\n  ```\n", "line 2 is never closed: line 4 is outside"),
        ("| a | ```python print(1)``` |\n", "the fence in line 1 must begin the line"),
        ("Text:\n\n    print(1)\n", "line 3 needs a fence"),
        ("- text:\n\n      print(1)\n", "line 3 needs a fence"),
    ],
)
def test_code_that_no_check_would_run_is_refused(page: str, message: str) -> None:
    """Code stands between two fences at the begin of their lines, so that the checks find all of it."""
    with pytest.raises(AssertionError, match=message):
        blocks(page)


def test_an_example_inside_a_list_is_run(reader: Reader, tmp_path: Path) -> None:
    """The check of a page fails if the program inside a list prints another text than its comment states."""
    page = tmp_path / "page.md"
    page.write_text("1. text\n\n   ```python\n   print(2)  # -> 1\n   ```\n")
    with pytest.raises(AssertionError, match=r"page\.md:3 printed"):
        check_page(page, "page.md", reader)


def test_console_blocks_are_split_into_commands() -> None:
    """`$` begins a command, `>` continues it, `?` states its exit code, and other lines are its output."""
    assert commands("$ echo a\na\n$ false\n? 1\n$ echo \\\n> b\nb\n") == [
        Command("echo a", "a\n", 0),
        Command("false", "", 1),
        Command("echo \\\nb", "b\n", 0),
    ]


@pytest.mark.parametrize(
    ("pattern", "text", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("...\nc\n", "a\nb\nc\n", True),
        ("id ... ok\n", "id 12 ok\n", True),
        ("id ... ok\n", "id 12 bad\n", False),
        ("", "", True),
        ("", "a\n", False),
        ("a.b\n", "axb\n", False),
        ("a  b\n", "a     b\n", True),
        ("a b\n", "a  b\n", False),
    ],
)
def test_varying_output_is_matched_by_dots(pattern: str, text: str, same: bool) -> None:
    """`...` matches any text, and two spaces match any number of spaces. All other text must be equal."""
    assert matches(pattern, text) is same


def test_wrong_examples_are_caught(reader: Reader) -> None:
    """The checks report a program with another output, an error, a warning or an invalid request.

    They also report commands with another output or exit code, and unknown make targets.
    """
    ask = "import openai\nclient = openai.OpenAI(max_retries=0)\ntry:\n    "
    ask += "client.chat.completions.create(model='m', messages=[{'role': 'assistant', 'content': 'hi'}])\n"
    with pytest.raises(AssertionError, match="last message must not be the assistant's"):
        run_python(Block(1, "python", f"{ask}except openai.BadRequestError:\n    pass\n"), reader, "here")
    with pytest.raises(AssertionError, match="never asked"):
        run_python(Block(1, "python", "import openai\n"), reader, "here")
    run_python(Block(1, "python", "print(1)  # -> 1\n"), reader, "here")
    run_console(Block(1, "console", "$ echo a > f\n$ cat f\na\n$ exit 3\n? 3\n"), reader, "here")
    check_sh(Block(1, "sh", "make test\npython3 -m venv .venv\n"), "here")
    for program in (
        "print(2)  # -> 1\n",
        "raise SystemExit(1)\n",
        "import warnings; warnings.warn('x')\n",
        "print(1)\n",
    ):
        with pytest.raises(AssertionError, match="here"):
            run_python(Block(1, "python", program), reader, "here")
    for session in ("$ echo b\na\n", "$ exit 3\n", "$ echo more\n"):
        with pytest.raises(AssertionError, match="here"):
            run_console(Block(1, "console", session), reader, "here")
    for line in ("make nothing\n", "rm -rf .\n"):
        with pytest.raises(AssertionError, match="here"):
            check_sh(Block(1, "sh", line), "here")
