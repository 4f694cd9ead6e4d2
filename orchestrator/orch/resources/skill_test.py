"""Tests a skill's format, file references, scripts, own tests, and description without a model.

A model chooses a skill by its description. This choice cannot be tested offline. Instead, the test checks whether the
description shares words with typical prompts, and more words than the descriptions of other skills.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from msgspec import Struct

from orch_protocol.core.text import decode_text
from orch_protocol.resources.skills import SkillSpec
from orch_worker.backends.offline.bm25 import count, terms_of
from orch_worker.skills.skill_file import check_skill
from orch_worker.system.folder_digest import skill_files

__all__ = ["PROMPTS", "TESTS", "Trial", "trials"]

TESTS: Final = "tests"
PROMPTS: Final = "prompts.txt"
SECONDS: Final = 60.0
MAX_OUTPUT_CHARS: Final = 600
PASSED_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")
"""Environment variables that tests get. They contain no keys."""
_LINK: Final = re.compile(r"\]\(([^)\s#]{1,300}+)[^)]{0,300}+\)|(?<![\w/.-])((?:scripts|references|assets)/[\w./-]*\w)")
_COLLECTED: Final = re.compile(r"^(?:(?:async )?def test_|class Test)", re.MULTILINE)
"""Matches test functions and classes that pytest collects."""


class Trial(Struct, frozen=True):
    """The result of one check. `detail` describes the failure."""

    name: str
    outcome: Literal["passed", "failed"]
    detail: str = ""


def trials(folder: Path, others: Sequence[SkillSpec] = (), seconds: float = SECONDS) -> Iterator[Trial]:
    """Yield the result of each check of the skill in `folder`. The description of the skill is compared with the skills
    `others`.

    The skill's own tests are the files `tests/*`, and the files `test_*` beside `SKILL.md`, with the suffix `.py` or
    `.sh`. Each test runs in an empty folder, with the skill's folder as `$SKILL_DIR` and without API keys. A test
    passes if its exit status is 0. Each line of `tests/prompts.txt` is a prompt. For each of these prompts, a model
    should choose the skill. Raises ConfigError if there is no skill.
    """
    folder = folder.absolute()
    skill, problems = check_skill(folder)
    yield _trial("rules", "; ".join(map(str, problems)))
    if skill is None:
        return
    files = {path.relative_to(folder).as_posix(): path for path in sorted(skill_files(folder))}
    missing = [name for name in _paths_in(skill.body) if not (folder / name).exists()]
    yield _trial("files", f"its text names {', '.join(missing)}, which it does not have" if missing else "")
    for name, path in files.items():
        if name.startswith("scripts/") and path.suffix in (".py", ".sh"):
            yield _trial(name, _syntax(path))
    prompts = files.get(f"{TESTS}/{PROMPTS}")
    if prompts is not None:
        own = SkillSpec(skill.name, skill.description)
        for line in filter(None, map(str.strip, decode_text(prompts.read_bytes(), lossy=True).splitlines())):
            if not line.startswith("#"):
                yield _trial(f"prompt: {line}", _why_not_chosen(line, own, others))
    for name, path in files.items():
        if _is_test(name):
            yield _trial(name, _run_test(path, folder, seconds))


def _trial(name: str, failure: str) -> Trial:
    return Trial(name, "failed" if failure else "passed", failure)


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    is_in_root = path.parent == PurePosixPath() and path.name.startswith("test_")
    return (is_in_root or path.parent == PurePosixPath(TESTS)) and path.suffix in (".py", ".sh")


def _paths_in(body: str) -> Iterator[str]:
    """Yield each file path in `body` once."""
    found: dict[str, None] = {}
    for match in _LINK.finditer(body):
        path = match[1] or match[2]
        if ":" not in path and not path.startswith(("/", "~", "$", "<", "{")):
            found[path.removeprefix("./")] = None
    yield from found


def _syntax(path: Path) -> str:
    if path.suffix == ".py":
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return f"not Python: {error}"
        return ""
    completed = subprocess.run(
        [_shell(path), "-n", str(path)], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
    )
    return completed.stderr.decode("utf-8", "replace").strip()[-MAX_OUTPUT_CHARS:] if completed.returncode else ""


def _shell(path: Path) -> str:
    return "bash" if "bash" in decode_text(path.read_bytes(), lossy=True).partition("\n")[0] else "sh"


def _why_not_chosen(prompt: str, own: SkillSpec, others: Sequence[SkillSpec]) -> str:
    """Return the reason why a model may not choose the skill for `prompt`. Return "" if no reason was found."""
    score = _score(prompt, own)
    if not score:
        return "its description shares no word with this prompt; describe the skill in the words of its users"
    better_matches = [each.name for each in others if each.name != own.name and _score(prompt, each) > score]
    return f"the description of {', '.join(better_matches)} shares more with this" if better_matches else ""


def _score(prompt: str, skill: SkillSpec) -> float:
    words = f"{skill.name.replace('-', ' ')} {skill.description}".lower()
    return sum(term.weight for term in terms_of(prompt) if count(term, words))


def _command(path: Path, folder: Path) -> list[str]:
    if path.suffix == ".sh":
        return [_shell(path), str(path)]
    text = decode_text(path.read_bytes(), lossy=True)
    if _COLLECTED.search(text) is None or "__name__" in text:
        return [sys.executable, str(path)]
    # If such a file ran as a script, it would pass without calling its tests. The configuration of a project around the
    # skill is ignored.
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={folder}"]
    return [sys.executable, "-m", "pytest", *options, str(path)]


def _run_test(path: Path, folder: Path, seconds: float) -> str:
    """Run a test and return the failure, or "" if the test passed. Kill all processes of the test afterwards."""
    command = _command(path, folder)
    with tempfile.TemporaryDirectory(prefix="orch-skill-") as folder_path:
        env = {name: value for name, value in os.environ.items() if name in PASSED_VARIABLES}
        process = subprocess.Popen(
            command,
            cwd=folder_path,
            env=env | {"HOME": folder_path, "SKILL_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
            timeout_error = ""
        except subprocess.TimeoutExpired:
            timeout_error, output = f"it did not end within {seconds:g} s", b""
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # all processes of the test have ended
            process.communicate()
    if timeout_error or process.returncode:
        text = output.decode("utf-8", "replace").strip()[-MAX_OUTPUT_CHARS:]
        return timeout_error or f"it ended with {process.returncode}{': ' if text else ''}{text}"
    return ""
