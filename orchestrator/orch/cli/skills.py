"""`orch skills`: which there are, what one says, whether it keeps the rules, and trusting a project's."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.errors import ConfigError
from orch_worker.contents import skill_files
from orch_worker.skill_file import FILES, Problem, SkillFile, check_skill, file_of
from orch_worker.skill_tools import tools_named

from .. import config, paths
from ..extensions import find as find_extensions
from ..extensions import specs
from ..skills.finding import Found, find, trust, untrust
from ..skills.record import installed
from . import render, words
from .failure import Failure
from .skills_making import MAKING, folder_argument
from .verb import Group, Verb

__all__ = ["VERBS"]

HEAD: Final = ["SKILL", "FROM", "ON", "HASH", "DESCRIPTION"]
NOT_FOUND: Final = 3
SHOWN: Final = 12


def _there(arguments: Namespace) -> list[Found]:
    folder, home = Path(arguments.cwd).absolute(), paths.home(os.environ)
    loaded = config.load(folder, os.environ)
    for note in loaded.notes:
        print(f"orch: {note}", file=sys.stderr)
    if not loaded.config.skills.enabled:
        print("orch: skills.enabled is false: no agent has any of them", file=sys.stderr)
    extensions = specs(find_extensions(folder, home, loaded.config.extensions.load), home)
    return find(folder, home, loaded.config.skills, extensions=extensions)


def _list(arguments: Namespace) -> int:
    rows = [_row(each) for each in _there(arguments)]
    for row in rows:
        if row["why_off"]:
            print(f"orch: {render.line(row['name'], 64)} is off: {render.line(row['why_off'], 400)}", file=sys.stderr)
    text = render.columns([HEAD, *map(_cells, rows)], frozenset()) if rows else "no skills: see docs/skills.md"
    words.say(arguments, rows, text)
    return 0


def _row(found: Found) -> dict[str, Any]:
    skill = found.skill
    row = installed(Path(found.path), paths.home(os.environ)) if found.path else None
    whence = (
        msgspec.to_builtins(row) | {"changed": skill is None or skill.hash != row.hash} if row is not None else None
    )
    return {
        "name": found.name,
        "where": found.where,
        "path": found.path,
        "on": not found.why_off,
        "why_off": found.why_off,
        "broken": found.broken,
        "description": skill.description if skill is not None else "",
        "hash": skill.hash if skill is not None else "",
        "installed": whence,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    on = "broken" if row["broken"] else "yes" if row["on"] else "no"
    return [render.line(row["name"], 64), row["where"], on, row["hash"][:SHOWN], render.line(row["description"], 80)]


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a skill, as orch skills list names it, or its folder")
    folder_argument(parser)


def _place_of(arguments: Namespace) -> tuple[Path, Found | None]:
    """Return the folder of the skill that is meant: a path, or a name. Raises Failure."""
    name = words.clean(arguments.name)
    if os.path.sep in name or name in (".", ".."):
        return Path(name).expanduser().absolute(), None
    there = _there(arguments)
    found = next((each for each in there if each.name == name), None)
    if found is None:
        known = ", ".join(each.name for each in there) or "none"
        raise Failure(
            "SkillNotFoundError",
            f"there is no skill {name!r}; there are: {known}. A folder is one by its path: ./{name}",
            NOT_FOUND,
        )
    return Path(found.path), found


def _show(arguments: Namespace) -> int:
    folder, found = _place_of(arguments)
    skill, problems = check_skill(folder)
    if skill is None:
        raise ConfigError(f"{folder / FILES[0]}: {'; '.join(map(str, problems))}")
    files = sorted(path.relative_to(folder).as_posix() for path in skill_files(folder) if path != file_of(folder))
    row = (_row(found) if found is not None else {"path": str(folder)}) | msgspec.to_builtins(skill) | {"files": files}
    words.say(arguments, row, _page(row, skill))
    return 0


def _page(row: dict[str, Any], skill: SkillFile) -> str:
    allowed = skill.allowed
    named = f"{' '.join(allowed)} (here: {', '.join(sorted(tools_named(allowed)))})" if allowed else ""
    fields = {
        "name": skill.name,
        "description": skill.description,
        "license": skill.license,
        "compatibility": skill.compatibility,
        "tools": named,
        "folder": row["path"],
        "hash": row.get("hash", ""),
        "installed": _whence(row.get("installed")),
        "off": row.get("why_off", ""),
        "files": ", ".join(row["files"]),
    }
    lines = [f"{name + ':':15}{render.line(str(value), 2000)}" for name, value in fields.items() if value]
    return "\n".join((*lines, "", render.shown(skill.body)))


def _whence(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    commit = f", commit {row['commit'][:SHOWN]}" if row["commit"] else ""
    return f"from {row['source']}{commit}, {row['at']}{'; changed since' if row['changed'] else ''}"


def _validate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="the folder of a skill")


def _validate(arguments: Namespace) -> int:
    """Say of each folder what is wrong with it; 1 when anything is."""
    rows = []
    for name in map(words.clean, arguments.folders):
        folder = Path(name).expanduser().absolute()
        try:
            skill, problems = check_skill(folder)
            wrong = [{"line": each.line, "field": each.field, "problem": each.what} for each in problems]
            list(skill_files(folder))
            if skill is not None and not skill.body:
                wrong.append({"line": 0, "field": "", "problem": "it has no body: say what to do"})
        except ConfigError as error:
            wrong = [{"line": 0, "field": "", "problem": str(error)}]
        rows.append({"path": str(folder), "valid": not wrong, "problems": wrong})
    words.say(arguments, rows, "\n".join(line for row in rows for line in _verdict(row)))
    return 0 if all(row["valid"] for row in rows) else 1


def _verdict(row: dict[str, Any]) -> list[str]:
    path = render.safe(row["path"])
    if row["valid"]:
        return [f"{path}: a skill"]
    problems = (Problem(each["line"], each["field"], each["problem"]) for each in row["problems"])
    return [f"{path}: {render.line(str(each), 400)}" for each in problems]


def _of_project(arguments: Namespace) -> Path:
    place, found = _place_of(arguments)
    if found is not None and found.where != "project":
        raise Failure("ConfigError", f"skill {found.name!r} is not a project's ({found.where}): it needs no trust", 2)
    return place


def _trust(arguments: Namespace) -> int:
    place = _of_project(arguments)
    skill = trust(place, paths.home(os.environ))
    said = f"trusted as it is now: {skill.name} in {render.safe(str(place))}"
    words.say(arguments, {"trusted": str(place), "hash": skill.hash}, said)
    return 0


def _untrust(arguments: Namespace) -> int:
    place = _of_project(arguments)
    was = untrust(place, paths.home(os.environ))
    said = "no longer trusted" if was else "was not trusted"
    words.say(arguments, {"untrusted": was}, f"{said}: {render.safe(str(place))}")
    return 0


VERBS = {
    "skills": Group(
        "Skills: instructions for particular work, which agents read when they need them.",
        "orch skills list",
        {
            "list": (
                "those there are for a folder",
                Verb(
                    "List the skills for agents in a folder, with what each is for, or why it is off.",
                    "orch skills list --json",
                    folder_argument,
                    _list,
                ),
            ),
            "show": (
                "what one says",
                Verb(
                    "Print a skill: what it is for, which tools and files it has, and its text.",
                    "orch skills show review",
                    _show_arguments,
                    _show,
                ),
            ),
            "validate": (
                "whether a folder is one",
                Verb(
                    "Check folders by the rules of agentskills.io; exit code 1 when one breaks any.",
                    "orch skills validate ./review",
                    _validate_arguments,
                    _validate,
                ),
            ),
            **MAKING,
            "trust": (
                "let agents read a project's, as it is now",
                Verb(
                    "Trust a skill of a project's as it is now, after you have read it; a change asks anew.",
                    "orch skills trust review",
                    _show_arguments,
                    _trust,
                ),
            ),
            "untrust": (
                "let them read it no more",
                Verb("Forget that it was trusted.", "orch skills untrust review", _show_arguments, _untrust),
            ),
        },
    )
}
