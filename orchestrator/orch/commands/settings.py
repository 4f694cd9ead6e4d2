"""Slash commands about the agent's setup (templates, skills, memory, extensions, hooks) and this machine."""

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
from orch_worker.hooks.loader import BUILTIN, configured_hooks

from ..config import config
from ..diagnostics import checks
from ..policy import hook_records
from ..render import config as config_render
from ..render import doctor as doctor_rows
from ..render import terminal
from ..render.columns import format_columns
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
"""The template variable for text that is not a value of another variable."""


def templates_of(ctx: SessionContext) -> list[PromptTemplate]:
    """Return the templates of the session.

    The program or the configuration for the agent's folder provides the templates.
    """
    if ctx.root.session_sources.program_templates is not None:
        return ctx.root.session_sources.program_templates.all()
    folder, home = Path(ctx.spec.project), ctx.root.hooks.home
    return templates_for(config.load(folder, home=home).config, folder, home).all()


@command("templates", "list prompt templates; /template NAME runs one", group=GROUP)
async def templates(ctx: SessionContext) -> CommandResult:
    found, problems = usable_templates(await ctx.root.disk.do(templates_of, ctx))
    rows = prompt_rows.template_data(found)
    text = prompt_rows.template_table(rows) if rows else "no templates: see docs/guides/prompts.md"
    return CommandResult("\n".join([text, *problems]), rows)


@command(
    "template",
    "query with a template: NAME=VALUE sets variables, other words set the variable `text`",
    positional("name", "template", required=True),
    remainder("values", "pair"),
    group=GROUP,
)
async def template(ctx: SessionContext) -> CommandResult:
    name = ctx.arguments["name"]
    by_name = {each.name: each for each in await ctx.root.disk.do(templates_of, ctx)}
    if name not in by_name:
        raise ConfigError(f"no template named {name!r}; known: {', '.join(by_name) or 'none'}")
    return await fill_template(by_name[name], ctx.get("values") or "")


async def fill_template(prompt_template: PromptTemplate, line: str) -> CommandResult:
    """Fill in a template with the text `line` and return the prompt.

    The user typed this text after the template's name. Words `name=value` at the beginning are values of the template's
    variables. The remaining words are the text. If the template has no variable for the text, the prompt contains the
    text after the template. Raises ConfigError.
    """
    values: dict[str, Any] = {}
    words = line.split()
    while words and (pair := words[0].partition("="))[1] and pair[0] in prompt_template.variables:
        values[pair[0]] = pair[2]
        line = line.strip()[len(words.pop(0)) :]
    remaining = line.strip()
    if TEXT in prompt_template.variables and TEXT not in values:
        values[TEXT], remaining = remaining, ""
    text = scrub("\n\n".join(part for part in (prompt_template.render(values).strip(), remaining) if part))
    return CommandResult(effect=Effect("ask", text=text), data={"template": prompt_template.name, "text": text})


@command("skills", "list the skills of the agent", group=GROUP)
async def skills(ctx: SessionContext) -> CommandResult:
    data = [{"name": each.name, "description": each.description, "path": each.path} for each in _skills(ctx)]
    rows = [
        [terminal.truncate_line(each["name"], 64), terminal.truncate_line(each["description"], 100)] for each in data
    ]
    return CommandResult(
        format_columns([["SKILL", ""], *rows]) if rows else "no skills: see docs/guides/skills.md",
        data,
    )


@command(
    "skill",
    "query the agent with an instruction to use a skill",
    positional("name", required=True),
    remainder("task"),
    group=GROUP,
)
async def skill(ctx: SessionContext) -> CommandResult:
    name, known = ctx.arguments["name"], [each.name for each in _skills(ctx)]
    if name not in known:
        raise ConfigError(f"/skill: the agent has no skill {name!r}; it has {', '.join(known) or 'none'}")
    prompt = f"Do this with the skill {name}: read it first with read_skill."
    return CommandResult(
        effect=Effect("ask", text="\n\n".join(part for part in (prompt, ctx.get("task") or "") if part))
    )


def _skills(ctx: SessionContext) -> tuple[SkillSpec, ...]:
    return ctx.spec.skills.skills


@command(
    "memory",
    "list notes about this folder; add TEXT, show ID, forget ID",
    positional("what", "choice", "add", "show", "forget"),
    remainder("note"),
    group=GROUP,
)
async def memory(ctx: SessionContext) -> CommandResult:
    return await ctx.root.disk.do(_memory, ctx)


def _memory(ctx: SessionContext) -> CommandResult:
    memory, spec = open_memory(Path(ctx.spec.project), ctx.root.hooks.home)
    what, argument = ctx.get("what"), ctx.get("note")
    notes = memory.notes()
    if what is None:
        return CommandResult(
            memory_rows.table(notes) if notes else "no notes about this folder", memory_rows.data(notes)
        )
    if not argument:
        raise ConfigError(f"/memory {what}: pass {'the text of the note' if what == 'add' else 'the id of a note'}")
    if what == "add":
        note = add_note(memory, spec, scrub(argument))
        return CommandResult(f"noted: {note.id}", memory_rows.data([note])[0])
    found = select_notes(notes, argument.split())
    if what == "forget":
        removed = memory.forget(note.id for note in found)
        return CommandResult(f"forgotten: {', '.join(note.id for note in removed)}", memory_rows.data(removed))
    return CommandResult(
        "\n\n".join(f"{note.id}\n{terminal.safe(note.text)}" for note in found), memory_rows.data(found)
    )


@command("extensions", "list extensions of the agent's folder, and which of them are active", group=GROUP)
async def extensions(ctx: SessionContext) -> CommandResult:
    return await ctx.root.disk.do(_extensions, ctx)


def _extensions(ctx: SessionContext) -> CommandResult:
    folder, home = Path(ctx.spec.project), ctx.root.hooks.home
    active_paths = {each.path for each in ctx.spec.extensions}
    found = find(folder, home, config.load(folder, home=home).config.extensions.load)
    rows = [extension_rows.described(each) | {"on": each.path in active_paths} for each in found]
    return CommandResult(extension_rows.table(rows) if rows else "no extensions: see docs/guides/extensions.md", rows)


@command("hooks", "list hooks with their statistics", group=GROUP)
async def hooks(ctx: SessionContext) -> CommandResult:
    spec, registered = ctx.spec.hooks, ctx.root.hooks.registered
    loaded = configured_hooks([name for name in spec.load if name in BUILTIN], spec.options)
    rows = [*(hook.row for hook in loaded), *registered]
    found = [*await ctx.root.disk.do(hook_records.hook_lines, ctx.root.hooks.home, rows), hook_records.AUDIT_LOG]
    return CommandResult(hook_rows.table(found), msgspec.to_builtins(found))


@command("config", "show every setting for the agent's folder with its source", group=GROUP)
async def show_config(ctx: SessionContext) -> CommandResult:
    return await ctx.root.disk.do(_show_config, ctx)


def _show_config(ctx: SessionContext) -> CommandResult:
    loaded = config.load(Path(ctx.spec.project), os.environ, home=ctx.root.hooks.home)
    values = config.flatten(loaded.config)
    rows = {key: {"value": value, "source": loaded.sources[key]} for key, value in values.items()}
    return CommandResult("\n".join([*loaded.notes, config_render.table(values, loaded.sources)]), rows)


@command("doctor", "check whether this machine meets orch's requirements", group=GROUP)
async def run_doctor(ctx: SessionContext) -> CommandResult:  # noqa: ARG001
    found = await asyncio.to_thread(checks.findings)
    return CommandResult(doctor_rows.page(found), doctor_rows.data(found))


COMMANDS: Final = (templates, template, skills, skill, memory, extensions, hooks, show_config, run_doctor)
