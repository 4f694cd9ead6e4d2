"""Creates skills from a prompt template or a session, and packs a skill into a file."""

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

__all__ = ["of_session", "of_template", "write_skill", "write_zip"]

MAX_STEPS: Final = 60
MAX_CHARS: Final = 300
MAX_ANSWER: Final = 4_000
ZIP_DATE: Final = (1980, 1, 1, 0, 0, 0)
"""The date of each file in a zip file. The date is constant, so that the same skill gives the same bytes."""


def of_template(template: PromptTemplate, name: str, description: str) -> Skill:
    """Return a skill with the text of `template`. The variables in the text are not replaced. Raises ConfigError."""
    variables = template.variables
    placeholders = ", ".join(f"<{each}>" for each in variables)
    instruction = (
        f"Take the values of {placeholders} below from the task. If a value is missing, ask for it.\n\n"
        if placeholders
        else ""
    )
    text = VARIABLE.sub(lambda match: f"<{match[1]}>" if match[1] else match[3], template.text)
    return Skill(name, description, instruction + text)


def of_session(task: str, messages: Sequence[Message], name: str, description: str = "") -> Skill:
    """Return a draft of a skill from a conversation.

    The draft contains the prompts, each tool call, and the last answer. A person should read the draft and make it
    general. Raises ConfigError for a conversation without calls and answers.
    """
    steps: list[str] = []
    answer = ""
    for message in messages:
        calls = tool_uses(message)
        if message.role == "user":
            if prompt := split_first_prompt(text_of(message))[1].strip():
                steps.append(f"Asked: {_line(prompt)}")
        else:
            steps += (f"{_call(each)}" for each in calls)
            answer = text_of(message).strip() or answer
    if not any(step.startswith("`") for step in steps) and not answer:
        raise ConfigError("cannot make a skill: this conversation has no completed actions")
    omitted = len(steps) - MAX_STEPS
    if omitted > 0:
        half = MAX_STEPS // 2
        steps = [*steps[:half], f"({omitted} more steps)", *steps[-half:]]
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    parts = [f"# Purpose\n\n{_line(task)}", f"# Steps\n\n{numbered}"]
    if answer:
        parts.append(f"# Result\n\n{clip(answer, MAX_ANSWER, 'the session contains the rest')}")
    return Skill(name, description or f"{_line(task).rstrip('.')}. Use for tasks of this kind.", "\n\n".join(parts))


def write_skill(skill: Skill, parent: Path, *, force: bool = False) -> Path:
    """Write `skill` as a folder below `parent` and return the folder.

    Raises ConfigError if the folder exists or the skill is invalid. With `force`, an existing folder is used.
    """
    skill.spec()
    folder = parent / skill.name
    if folder.exists() and not force:
        raise ConfigError(f"{folder} already exists: use --force to write into it, or choose another --output")
    for path, text in {"SKILL.md": skill.text(), **skill.files}.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    return folder


def write_zip(folder: Path, output: Path) -> Path:
    """Write the skill in `folder` as the zip file `output`. The same skill always gives the same bytes.

    Raises ConfigError.
    """
    name = read_skill_file(folder).name
    files = sorted(skill_files(folder))
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                info = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", ZIP_DATE)
                info.external_attr = (0o100755 if path.stat().st_mode & 0o100 else 0o100644) << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())
        temporary.replace(output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return output


def _call(call: ToolUse) -> str:
    return f"`{call.name}` {_line(json.dumps(call.input, ensure_ascii=False))}"


def _line(text: str) -> str:
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 3]}..."
