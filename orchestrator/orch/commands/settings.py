"""Commands about what the agent was given: notes, templates, extensions, hooks, configuration; and this machine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import scrub
from orch_protocol.resources.skills import SkillSpec
from orch_protocol.resources.slash_commands import Effect

from ..config import config
from ..diagnostics import checks
from ..policy import hook_records
from ..render import config as config_render
from ..render import doctor as doctor_rows
from ..render import terminal
from ..render.resources import extensions as extension_rows
from ..render.resources import hooks as hook_rows
from ..render.resources import memory as memory_rows
from ..render.resources import prompts as prompt_rows
from ..resources.extensions import find, templates_for
from ..resources.memory import add_note, open_memory, select_notes
from ..resources.prompt_templates import PromptTemplate, usable_templates
from .registry import CommandResult, SessionContext, command, positional, remainder

__all__ = ["COMMANDS", "fill_template", "templates_of"]

GROUP: Final = "setup"
TEXT: Final = "text"
"""The variable of a template that takes what is said besides the values of others."""


def templates_of(here: SessionContext) -> list[PromptTemplate]:
    """Return the templates that can be used in the session: the program's, or those configured for its folder."""
    if here.root.offers.registered is not None:
        return here.root.offers.registered.all()
    folder, home = Path(here.spec.cwd), here.root.hooks.home
    return templates_for(config.load(folder, home=home).config, folder, home).all()


@command("templates", "prompts with variables, which /template NAME asks", group=GROUP)
async def templates(here: SessionContext) -> CommandResult:
    found, faults = usable_templates(await here.root.disk.do(templates_of, here))
    rows = prompt_rows.template_data(found)
    told = prompt_rows.template_table(rows) if rows else "no templates: see docs/agents.md"
    return CommandResult("\n".join([told, *faults]), rows)


@command(
    "template",
    "ask what a template says, with NAME=VALUE for its variables, and a text for the one called text",
    positional("name", "template", required=True),
    remainder("values", "pair"),
    group=GROUP,
)
async def template(here: SessionContext) -> CommandResult:
    name = here.said["name"]
    known = {each.name: each for each in await here.root.disk.do(templates_of, here)}
    if name not in known:
        raise ConfigError(f"there is no template {name!r}; there are {', '.join(known) or 'none'}")
    return await fill_template(known[name], here.get("values") or "")


async def fill_template(found: PromptTemplate, said: str) -> CommandResult:
    """Return what is to be asked by the template, filled in with what somebody `said` behind its name.

    Words `name=value` at the beginning are values of its variables, the remainder is the text; where no variable is
    called that, it stands below. Raises ConfigError.
    """
    values: dict[str, Any] = {}
    words = said.split()
    while words and (pair := words[0].partition("="))[1] and pair[0] in found.variables:
        values[pair[0]] = pair[2]
        said = said.strip()[len(words.pop(0)) :]
    below = said.strip()
    if TEXT in found.variables and TEXT not in values:
        values[TEXT], below = below, ""
    text = scrub("\n\n".join(part for part in (found.render(values).strip(), below) if part))
    return CommandResult(effect=Effect("ask", text=text), data={"template": found.name, "text": text})


@command("skills", "the skills that the agent has, which it reads when its work is of that kind", group=GROUP)
async def skills(here: SessionContext) -> CommandResult:
    mine = [{"name": each.name, "description": each.description, "path": each.path} for each in _skills(here)]
    rows = [
        [terminal.truncate_line(each["name"], 64), terminal.truncate_line(each["description"], 100)] for each in mine
    ]
    return CommandResult(
        terminal.format_columns([["SKILL", ""], *rows], frozenset()) if rows else "no skills: see docs/skills.md", mine
    )


@command(
    "skill",
    "ask for something that is to be done by a skill",
    positional("name", required=True),
    remainder("task"),
    group=GROUP,
)
async def skill(here: SessionContext) -> CommandResult:
    name, known = here.said["name"], [each.name for each in _skills(here)]
    if name not in known:
        raise ConfigError(f"/skill: the agent has no skill {name!r}; it has {', '.join(known) or 'none'}")
    told = f"Do this by the skill {name}: read it first, with read_skill."
    return CommandResult(
        effect=Effect("ask", text="\n\n".join(part for part in (told, here.get("task") or "") if part))
    )


def _skills(here: SessionContext) -> tuple[SkillSpec, ...]:
    return here.spec.skills.skills


@command(
    "memory",
    "what agents remember of this folder; add TEXT, show ID, forget ID",
    positional("what", "choice", "add", "show", "forget"),
    remainder("note"),
    group=GROUP,
)
async def memory(here: SessionContext) -> CommandResult:
    return await here.root.disk.do(_memory, here)


def _memory(here: SessionContext) -> CommandResult:
    memory, spec = open_memory(Path(here.spec.cwd), here.root.hooks.home)
    what, said = here.get("what"), here.get("note")
    notes = memory.notes()
    if what is None:
        return CommandResult(
            memory_rows.table(notes) if notes else "nothing is noted about this folder", memory_rows.data(notes)
        )
    if not said:
        raise ConfigError(f"/memory {what}: say {'what is to be remembered' if what == 'add' else 'the id of a note'}")
    if what == "add":
        note = add_note(memory, spec, scrub(said))
        return CommandResult(f"noted: {note.id}", memory_rows.data([note])[0])
    found = select_notes(notes, said.split())
    if what == "forget":
        gone = memory.forget(note.id for note in found)
        return CommandResult(f"forgotten: {', '.join(note.id for note in gone)}", memory_rows.data(gone))
    return CommandResult(
        "\n\n".join(f"{note.id}\n{terminal.safe(note.text)}" for note in found), memory_rows.data(found)
    )


@command("extensions", "extensions for the agent's folder, and which of them it runs with", group=GROUP)
async def extensions(here: SessionContext) -> CommandResult:
    return await here.root.disk.do(_extensions, here)


def _extensions(here: SessionContext) -> CommandResult:
    folder, home = Path(here.spec.cwd), here.root.hooks.home
    mine = {each.path for each in here.spec.extensions}
    found = find(folder, home, config.load(folder, home=home).config.extensions.load)
    rows = [extension_rows.described(each) | {"on": each.path in mine} for each in found]
    return CommandResult(extension_rows.table(rows) if rows else "no extensions: see docs/extensions.md", rows)


@command("hooks", "what hooks have done so far", group=GROUP)
async def hooks(here: SessionContext) -> CommandResult:
    found = [*await here.root.disk.do(hook_records.hook_lines, here.root.hooks.home, []), hook_records.AUDIT_LOG]
    return CommandResult(hook_rows.table(found), msgspec.to_builtins(found))


@command("config", "every setting for the agent's folder, and where it is from", group=GROUP)
async def configured(here: SessionContext) -> CommandResult:
    return await here.root.disk.do(_configured, here)


def _configured(here: SessionContext) -> CommandResult:
    loaded = config.load(Path(here.spec.cwd), os.environ, home=here.root.hooks.home)
    values = config.flatten(loaded.config)
    rows = {key: {"value": value, "source": loaded.sources[key]} for key, value in values.items()}
    return CommandResult("\n".join([*loaded.notes, config_render.table(values, loaded.sources)]), rows)


@command("doctor", "check what orch needs of this machine", group=GROUP)
async def doctored(here: SessionContext) -> CommandResult:  # noqa: ARG001
    found = await asyncio.to_thread(checks.findings)
    return CommandResult(doctor_rows.page(found), doctor_rows.data(found))


COMMANDS: Final = (templates, template, skills, skill, memory, extensions, hooks, configured, doctored)
