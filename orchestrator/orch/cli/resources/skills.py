"""`orch skills`: which there are, what one says, whether it keeps the rules, and trusting a project's."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message
from orch_worker.skills.skill_file import FILES, SkillFile, SkillProblem, check_skill, file_of
from orch_worker.skills.skill_tools import tools_named
from orch_worker.system.folder_digest import skill_files

from ...client.connection import Connection, replace_invalid_utf8
from ...client.failure import CommandError
from ...config import config, paths
from ...render import terminal
from ...resources.extensions import extension_specs
from ...resources.extensions import find as find_extensions
from ...resources.skill_discovery import FOLDER, Found, find, trust, untrust
from ...resources.skill_install import installed_from
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["MAKING", "VERBS", "folder_argument"]


# --- `orch skills install`, `remove`, `test`, `package` ---

EVERYTHING = 1_000_000


def folder_argument(parser: ArgumentParser) -> None:
    """Let the command take a project's folder."""
    parser.add_argument("--cwd", metavar="FOLDER", default=".", help="a project's folder (this one)")


def _project_argument(parser: ArgumentParser) -> None:
    folder_argument(parser)
    parser.add_argument(
        "--project", action="store_true", help="in .orch/skills of the project's folder, not in $ORCH_HOME/skills"
    )


def _into(arguments: Namespace) -> Path:
    folder = Path(arguments.cwd).absolute()
    return folder / ".orch" / FOLDER if arguments.project else paths.home(os.environ) / FOLDER


def _install_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a folder, a zip file, or the address of a git repository")
    parser.add_argument("--path", metavar="PATH", default="", help="where in it the skill is, when there are several")
    parser.add_argument("--ref", metavar="NAME", default="", help="the branch or tag of the repository")
    parser.add_argument("--force", action="store_true", help="put it in the place of one that is there")
    _project_argument(parser)


def _install(arguments: Namespace) -> int:
    from ...resources.skill_install import install

    home, into = paths.private_dir(paths.home(os.environ)), _into(arguments)
    source, path, ref = (replace_invalid_utf8(getattr(arguments, name)) for name in ("source", "path", "ref"))
    skill, row = install(source, into, home, path=path, ref=ref, force=arguments.force)
    if arguments.project:
        trust(Path(skill.path), home)  # whoever installs it says that it may be read
    commit = f", commit {row.commit[:12]}" if row.commit else ""
    said = f"installed: {skill.name} in {terminal.safe(skill.path)}, from {terminal.safe(row.source)}{commit}"
    command.print_result(
        arguments, {"name": skill.name, "path": skill.path} | {"installed": msgspec.to_builtins(row)}, said
    )
    return 0


def _remove_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a skill that was installed")
    parser.add_argument("--force", action="store_true", help="also one that was not installed, or was changed since")
    _project_argument(parser)


def _remove(arguments: Namespace) -> int:
    from ...resources.skill_install import remove

    gone = remove(replace_invalid_utf8(arguments.name), _into(arguments), paths.home(os.environ), force=arguments.force)
    command.print_result(arguments, {"removed": str(gone)}, f"removed: {terminal.safe(str(gone))}")
    return 0


def _test_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a skill, as orch skills list names it, or its folder")
    parser.add_argument(
        "--seconds", type=command.duration, default=60.0, metavar="S", help="how long a test may take (60)"
    )
    folder_argument(parser)


def _test(arguments: Namespace) -> int:
    """Try the skill and say what became of each thing; 1 when anything failed."""
    from ...resources.skill_test import trials

    name, here, home = replace_invalid_utf8(arguments.name), Path(arguments.cwd).absolute(), paths.home(os.environ)
    there = find(here, home, config.load(here, os.environ).config.skills)
    named = next((each.path for each in there if each.name == name and each.path), "")
    folder = Path(name).expanduser().absolute() if os.path.sep in name or not named else Path(named)
    if not folder.is_dir():
        raise CommandError("SkillNotFoundError", f"there is no skill {name!r}, nor a folder", 3)
    others = [each.skill for each in there if each.skill is not None and not each.why_off]
    rows = []
    for trial in trials(folder, others, arguments.seconds):
        rows.append(msgspec.to_builtins(trial))
        if not arguments.json:
            why = f": {terminal.truncate_line(trial.detail, 1000)}" if trial.detail else ""
            print(f"{trial.outcome}  {terminal.truncate_line(trial.name, 200)}{why}", flush=True)
    command.print_result(arguments, {"path": str(folder), "trials": rows}, "")
    return 1 if any(row["outcome"] == "failed" for row in rows) else 0


def _package_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="what the skill is to be called; or the folder of one, for --zip")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="TEXT", help="of these instructions; - reads them from stdin")
    source.add_argument("--template", metavar="TEMPLATE", help="of a template of prompts: a name, or a file")
    source.add_argument("--session", metavar="REF", help="of what an agent did: a draft to be read")
    parser.add_argument("--description", metavar="TEXT", default="", help="what it is for, and when")
    parser.add_argument("--output", metavar="FOLDER", default=".", help="where it is to lie (here)")
    parser.add_argument("--zip", action="store_true", help="as NAME.zip")
    parser.add_argument("--force", action="store_true", help="write into a folder that is there")


def _package(arguments: Namespace) -> int:
    """Make a skill, as a folder or a zip file, of what is there."""
    from ...resources.skill_package import packed, written
    from ..scratch import scratch

    name, output = replace_invalid_utf8(arguments.name), Path(arguments.output).expanduser().absolute()
    if arguments.prompt is None and arguments.template is None and arguments.session is None:
        if not arguments.zip or not Path(name).is_dir():
            raise CommandError(
                "UsageError", "say what of: --prompt, --template or --session; or a skill's folder, and --zip", 2
            )
        folder = Path(name).absolute()
        made = packed(folder, output / f"{folder.name}.zip")
    else:
        skill = _made(arguments, name)
        if arguments.zip:
            with scratch() as place:
                made = packed(written(skill, place), output / f"{skill.name}.zip")
        else:
            made = written(skill, output, force=arguments.force)
    command.print_result(arguments, {"path": str(made)}, terminal.safe(str(made)))
    return 0


def _made(arguments: Namespace, name: str) -> Any:
    from ...resources.skill_package import of_session, of_template
    from ...resources.skills import Skill

    description = replace_invalid_utf8(arguments.description)
    if arguments.session is not None:
        shown = Connection().call("show", {"ref": arguments.session, "messages": EVERYTHING})
        messages = msgspec.convert(shown["messages"], list[Message])
        return of_session(shown["agent"]["task"], messages, name, description)
    if not description:
        raise ConfigError("a skill needs a --description: what it is for and when, in the words of those who ask")
    if arguments.template is not None:
        from ...resources.extensions import templates_for

        home = paths.home(os.environ)
        there = templates_for(config.load(Path.cwd(), os.environ).config, Path.cwd(), home)
        return of_template(there.find(replace_invalid_utf8(arguments.template)), name, description)
    return Skill(name, description, replace_invalid_utf8(command.text(arguments.prompt)))


MAKING: dict[str, tuple[str, CliCommand]] = {
    "install": (
        "copy one from a folder, a zip file or a repository",
        CliCommand(
            "Install a skill: it is checked first, and where it is from, with the hash of it, is kept.",
            "orch skills install https://example.org/skills.git --path review",
            _install_arguments,
            _install,
        ),
    ),
    "remove": (
        "delete one that was installed",
        CliCommand("Remove a skill that was installed.", "orch skills remove review", _remove_arguments, _remove),
    ),
    "test": (
        "try one without a model",
        CliCommand(
            "Try a skill offline: rules, files, scripts, its tests, and whether its description fits its prompts.",
            "orch skills test ./review",
            _test_arguments,
            _test,
        ),
    ),
    "package": (
        "make one of a prompt, a template or a session",
        CliCommand(
            "Make a skill of a prompt, a template or a session, as a folder or a zip file; or a zip file of a skill.",
            "orch skills package review --session 3 --output skills",
            _package_arguments,
            _package,
        ),
    ),
}


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
    extensions = extension_specs(find_extensions(folder, home, loaded.config.extensions.load), home)
    return find(folder, home, loaded.config.skills, extensions=extensions)


def _list(arguments: Namespace) -> int:
    rows = [_row(each) for each in _there(arguments)]
    for row in rows:
        if row["why_off"]:
            print(
                f"orch: {terminal.truncate_line(row['name'], 64)} is off: "
                f"{terminal.truncate_line(row['why_off'], 400)}",
                file=sys.stderr,
            )
    text = terminal.format_columns([HEAD, *map(_cells, rows)], frozenset()) if rows else "no skills: see docs/skills.md"
    command.print_result(arguments, rows, text)
    return 0


def _row(found: Found) -> dict[str, Any]:
    skill = found.skill
    row = installed_from(Path(found.path), paths.home(os.environ)) if found.path else None
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
    return [
        terminal.truncate_line(row["name"], 64),
        row["where"],
        on,
        row["hash"][:SHOWN],
        terminal.truncate_line(row["description"], 80),
    ]


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a skill, as orch skills list names it, or its folder")
    folder_argument(parser)


def _place_of(arguments: Namespace) -> tuple[Path, Found | None]:
    """Return the folder of the skill that is meant: a path, or a name. Raises Failure."""
    name = replace_invalid_utf8(arguments.name)
    if os.path.sep in name or name in (".", ".."):
        return Path(name).expanduser().absolute(), None
    there = _there(arguments)
    found = next((each for each in there if each.name == name), None)
    if found is None:
        known = ", ".join(each.name for each in there) or "none"
        raise CommandError(
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
    command.print_result(arguments, row, _page(row, skill))
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
    lines = [f"{name + ':':15}{terminal.truncate_line(str(value), 2000)}" for name, value in fields.items() if value]
    return "\n".join((*lines, "", terminal.safe_for_stdout(skill.body)))


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
    for name in map(replace_invalid_utf8, arguments.folders):
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
    command.print_result(arguments, rows, "\n".join(line for row in rows for line in _verdict(row)))
    return 0 if all(row["valid"] for row in rows) else 1


def _verdict(row: dict[str, Any]) -> list[str]:
    path = terminal.safe(row["path"])
    if row["valid"]:
        return [f"{path}: a skill"]
    problems = (SkillProblem(each["line"], each["field"], each["problem"]) for each in row["problems"])
    return [f"{path}: {terminal.truncate_line(str(each), 400)}" for each in problems]


def _of_project(arguments: Namespace) -> Path:
    place, found = _place_of(arguments)
    if found is not None and found.where != "project":
        raise CommandError(
            "ConfigError", f"skill {found.name!r} is not a project's ({found.where}): it needs no trust", 2
        )
    return place


def _trust(arguments: Namespace) -> int:
    place = _of_project(arguments)
    skill = trust(place, paths.home(os.environ))
    said = f"trusted as it is now: {skill.name} in {terminal.safe(str(place))}"
    command.print_result(arguments, {"trusted": str(place), "hash": skill.hash}, said)
    return 0


def _untrust(arguments: Namespace) -> int:
    place = _of_project(arguments)
    was = untrust(place, paths.home(os.environ))
    said = "no longer trusted" if was else "was not trusted"
    command.print_result(arguments, {"untrusted": was}, f"{said}: {terminal.safe(str(place))}")
    return 0


VERBS = {
    "skills": CommandGroup(
        "Skills: instructions for particular work, which agents read when they need them.",
        "orch skills list",
        {
            "list": (
                "those there are for a folder",
                CliCommand(
                    "List the skills for agents in a folder, with what each is for, or why it is off.",
                    "orch skills list --json",
                    folder_argument,
                    _list,
                ),
            ),
            "show": (
                "what one says",
                CliCommand(
                    "Print a skill: what it is for, which tools and files it has, and its text.",
                    "orch skills show review",
                    _show_arguments,
                    _show,
                ),
            ),
            "validate": (
                "whether a folder is one",
                CliCommand(
                    "Check folders by the rules of agentskills.io; exit code 1 when one breaks any.",
                    "orch skills validate ./review",
                    _validate_arguments,
                    _validate,
                ),
            ),
            **MAKING,
            "trust": (
                "let agents read a project's, as it is now",
                CliCommand(
                    "Trust a skill of a project's as it is now, after you have read it; a change asks anew.",
                    "orch skills trust review",
                    _show_arguments,
                    _trust,
                ),
            ),
            "untrust": (
                "let them read it no more",
                CliCommand("Forget that it was trusted.", "orch skills untrust review", _show_arguments, _untrust),
            ),
        },
    )
}
