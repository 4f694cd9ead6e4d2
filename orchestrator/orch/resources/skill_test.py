"""Trying a skill without a model: its rules, what its text names, its scripts, its own tests, and its description.

A model chooses a skill by its description. Whether it would cannot be known offline; whether the description shares a
word with what people will ask for, and more of them than another skill's, can be.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from orch_protocol.resources.skills import SkillSpec
from orch_worker.backends.offline.bm25 import count, terms_of
from orch_worker.skills.skill_file import check_skill
from orch_worker.system.folder_digest import skill_files

__all__ = ["PROMPTS", "TESTS", "Trial", "trials"]

TESTS: Final = "tests"
PROMPTS: Final = "prompts.txt"
SECONDS: Final = 60.0
SHOWN: Final = 600
SEEN: Final = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH")
"""What a test sees of the environment: no keys."""
_LINK: Final = re.compile(r"\]\(([^)\s#]{1,300}+)[^)]{0,300}+\)|(?<![\w/.-])((?:scripts|references|assets)/[\w./-]*\w)")


class Trial(Struct, frozen=True):
    """One thing that was tried, and `detail` of what was wrong with it."""

    name: str
    outcome: Literal["passed", "failed"]
    detail: str = ""


def trials(folder: Path, others: Sequence[SkillSpec] = (), seconds: float = SECONDS) -> Iterator[Trial]:
    """Yield what becomes of each thing that can be tried of the skill in `folder`; `others` are skills beside it.

    Its tests are `tests/*.py` and `tests/*.sh`: each runs in an empty folder, with the skill's as `$SKILL_DIR` and
    without any key, and has passed when it ends with 0. Each line of `tests/prompts.txt` is what somebody may ask that
    the skill is for. Raises ConfigError where there is no skill to try.
    """
    folder = folder.absolute()
    skill, problems = check_skill(folder)
    yield _trial("rules", "; ".join(map(str, problems)))
    if skill is None:
        return
    files = {path.relative_to(folder).as_posix(): path for path in sorted(skill_files(folder))}
    gone = [name for name in _named(skill.body) if not (folder / name).exists()]
    yield _trial("files", f"its text names {', '.join(gone)}, which it does not have" if gone else "")
    for name, path in files.items():
        if name.startswith("scripts/") and path.suffix in (".py", ".sh"):
            yield _trial(name, _syntax(path))
    prompts = files.get(f"{TESTS}/{PROMPTS}")
    if prompts is not None:
        own = SkillSpec(skill.name, skill.description)
        for line in filter(None, map(str.strip, prompts.read_text("utf-8", "replace").splitlines())):
            if not line.startswith("#"):
                yield _trial(f"prompt: {line}", _misses(line, own, others))
    for name, path in files.items():
        if name.startswith(f"{TESTS}/") and name.count("/") == 1 and path.suffix in (".py", ".sh"):
            yield _trial(name, _ran(path, folder, seconds))


def _trial(name: str, wrong: str) -> Trial:
    return Trial(name, "failed" if wrong else "passed", wrong)


def _named(body: str) -> Iterator[str]:
    """Yield the paths of files that `body` names, each once."""
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
    done = subprocess.run(
        [_shell(path), "-n", str(path)], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
    )
    return done.stderr.decode("utf-8", "replace").strip()[-SHOWN:] if done.returncode else ""


def _shell(path: Path) -> str:
    return "bash" if "bash" in path.read_text("utf-8", "replace").partition("\n")[0] else "sh"


def _misses(prompt: str, own: SkillSpec, others: Sequence[SkillSpec]) -> str:
    """Return why a model that reads descriptions may not come upon the skill for `prompt`, "" when it may."""
    score = _score(prompt, own)
    if not score:
        return "its description shares no word with this: say in it what the skill is for in the words of those who ask"
    ahead = [each.name for each in others if each.name != own.name and _score(prompt, each) > score]
    return f"the description of {', '.join(ahead)} shares more with this" if ahead else ""


def _score(prompt: str, skill: SkillSpec) -> float:
    said = f"{skill.name.replace('-', ' ')} {skill.description}".lower()
    return sum(term.weight for term in terms_of(prompt) if count(term, said))


def _ran(path: Path, folder: Path, seconds: float) -> str:
    """Run a test and return what is wrong, "" when nothing is. Nothing that it has started is left."""
    command = [sys.executable, str(path)] if path.suffix == ".py" else [_shell(path), str(path)]
    with tempfile.TemporaryDirectory(prefix="orch-skill-") as place:
        env = {name: value for name, value in os.environ.items() if name in SEEN}
        running = subprocess.Popen(
            command,
            cwd=place,
            env=env | {"HOME": place, "SKILL_DIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said, _ = running.communicate(timeout=seconds)
            late = ""
        except subprocess.TimeoutExpired:
            late, said = f"it did not end within {seconds:g} s", b""
        finally:
            try:
                os.killpg(running.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # nothing of it is left
            running.communicate()
    if late or running.returncode:
        told = said.decode("utf-8", "replace").strip()[-SHOWN:]
        return late or f"it ended with {running.returncode}{': ' if told else ''}{told}"
    return ""
