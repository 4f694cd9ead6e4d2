"""Skills made of what is there: of a prompt, a template, a session; and as one file to hand on."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, ToolUse, text_of, tool_uses
from orch_worker.conversation.framing import split_first_prompt
from orch_worker.conversation.tokens import clip
from orch_worker.skills.skill_file import read_skill_file
from orch_worker.system.folder_digest import skill_files

from .prompt_templates import VARIABLE, PromptTemplate
from .skills import Skill

__all__ = ["of_session", "of_template", "packed", "written"]

MOST_STEPS: Final = 60
MOST_CHARS: Final = 300
MOST_ANSWER: Final = 4_000
THEN: Final = (1980, 1, 1, 0, 0, 0)
"""The date of each file in a zip: the same skill is the same file."""


def of_template(template: PromptTemplate, name: str, description: str) -> Skill:
    """Return a skill that says what `template` does, with its variables left open. Raises ConfigError."""
    variables = template.variables
    given = ", ".join(f"<{each}>" for each in variables)
    asked = f"What stands for {given} below is to be known from the task; ask where it is not.\n\n" if given else ""
    text = VARIABLE.sub(lambda match: f"<{match[1]}>" if match[1] else match[3], template.text)
    return Skill(name, description, asked + text)


def of_session(task: str, messages: Sequence[Message], name: str, description: str = "") -> Skill:
    """Return a skill that tells how a conversation came to its end: what was asked, each call, and the last answer.

    It is a draft, to be read and made general by a person.
    """
    steps: list[str] = []
    answer = ""
    for message in messages:
        calls = tool_uses(message)
        if message.role == "user":
            if said := split_first_prompt(text_of(message))[1].strip():
                steps.append(f"Asked: {_line(said)}")
        else:
            steps += (f"{_call(each)}" for each in calls)
            answer = text_of(message).strip() or answer
    if not any(step.startswith("`") for step in steps) and not answer:
        raise ConfigError("cannot make a skill: this conversation has no completed actions")
    left = len(steps) - MOST_STEPS
    if left > 0:
        half = MOST_STEPS // 2
        steps = [*steps[:half], f"({left} more steps)", *steps[-half:]]
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    parts = [f"# What it is for\n\n{_line(task)}", f"# How it was done\n\n{numbered}"]
    if answer:
        parts.append(f"# What came of it\n\n{clip(answer, MOST_ANSWER, 'the session has it all')}")
    return Skill(name, description or f"{_line(task).rstrip('.')}. Use for tasks of this kind.", "\n\n".join(parts))


def written(skill: Skill, place: Path, *, force: bool = False) -> Path:
    """Write `skill` as a folder below `place` and return it. Raises ConfigError when it is there, or breaks a rule."""
    skill.spec()
    folder = place / skill.name
    if folder.exists() and not force:
        raise ConfigError(f"{folder} is there already: --force writes into it, or choose another --output")
    for path, text in {"SKILL.md": skill.text(), **skill.files}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return folder


def packed(folder: Path, output: Path) -> Path:
    """Write the skill in `folder` as the zip file `output`, the same bytes for the same skill. Raises ConfigError."""
    name = read_skill_file(folder).name
    files = sorted(skill_files(folder))
    beside = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(beside, "x", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                info = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", THEN)
                info.external_attr = (0o100755 if path.stat().st_mode & 0o100 else 0o100644) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())
        beside.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)
    return output


def _call(call: ToolUse) -> str:
    return f"`{call.name}` {_line(json.dumps(call.input, ensure_ascii=False))}"


def _line(text: str) -> str:
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= MOST_CHARS else f"{line[: MOST_CHARS - 3]}..."
