"""The command `orch skills` lists, shows, validates, installs and trusts skills."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, Final

import msgspec

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message
from orch_worker.skills.front_matter import FrontMatterProblem
from orch_worker.skills.skill_file import FILES, SkillFile, check_skill, file_of
from orch_worker.skills.skill_tools import tools_named
from orch_worker.system.folder_digest import skill_files

from ...client.connection import Connection, replace_invalid_utf8
from ...client.failure import CommandError
from ...config import config, paths
from ...config.trust import revoke
from ...render import terminal
from ...render.columns import format_columns
from ...resources.extensions import extension_specs
from ...resources.extensions import find as find_extensions
from ...resources.skill_discovery import FOLDER, Found, find, trust
from ...resources.skill_install import installed_from
from .. import command
from ..command import CliCommand, CommandGroup

__all__ = ["AUTHORING", "VERBS", "folder_argument"]


# --- `orch skills install`, `remove`, `test`, `package` ---

ALL_MESSAGES = 1_000_000


def folder_argument(parser: ArgumentParser) -> None:
    """Add the option for a project's folder."""
    parser.add_argument("--cwd", metavar="FOLDER", default=".", help="project folder (default: current folder)")


def _project_argument(parser: ArgumentParser) -> None:
    folder_argument(parser)
    parser.add_argument(
        "--project", action="store_true", help="use .orch/skills of the project folder instead of $ORCH_HOME/skills"
    )


def _target_folder(arguments: Namespace) -> Path:
    folder = Path(arguments.cwd).absolute()
    return folder / ".orch" / FOLDER if arguments.project else paths.home(os.environ) / FOLDER


def _install_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="folder, zip file or git repository URL")
    parser.add_argument(
        "--path", metavar="PATH", default="", help="path of the skill inside the source, if it holds several"
    )
    parser.add_argument("--ref", metavar="NAME", default="", help="branch or tag of the repository")
    parser.add_argument("--force", action="store_true", help="replace an installed skill of the same name")
    _project_argument(parser)


def _install(arguments: Namespace) -> int:
    from ...resources.skill_install import install

    home, target = paths.private_dir(paths.home(os.environ)), _target_folder(arguments)
    source, path, ref = (replace_invalid_utf8(getattr(arguments, name)) for name in ("source", "path", "ref"))
    skill, row = install(source, target, home, path=path, ref=ref, force=arguments.force)
    if arguments.project:
        trust(Path(skill.path), home)  # a user who installs a skill trusts it
    commit = f", commit {row.commit[:12]}" if row.commit else ""
    text = f"installed: {skill.name} in {terminal.safe(skill.path)}, from {terminal.safe(row.source)}{commit}"
    command.print_result(
        arguments, {"name": skill.name, "path": skill.path} | {"installed": msgspec.to_builtins(row)}, text
    )
    return 0


def _remove_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of an installed skill")
    parser.add_argument(
        "--force", action="store_true", help="remove it even if it was changed or not installed by orch"
    )
    _project_argument(parser)


def _remove(arguments: Namespace) -> int:
    from ...resources.skill_install import remove

    removed = remove(
        replace_invalid_utf8(arguments.name), _target_folder(arguments), paths.home(os.environ), force=arguments.force
    )
    command.print_result(arguments, {"removed": str(removed)}, f"removed: {terminal.safe(str(removed))}")
    return 0


def _test_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of a skill, as in `orch skills list`, or its folder")
    parser.add_argument(
        "--seconds", type=command.duration, default=60.0, metavar="S", help="time limit of one test in seconds (60)"
    )
    folder_argument(parser)


def _test(arguments: Namespace) -> int:
    """Test the skill and print each result. Return 1 if a test failed."""
    from ...resources.skill_test import trials

    name, project_folder, home = (
        replace_invalid_utf8(arguments.name),
        Path(arguments.cwd).absolute(),
        paths.home(os.environ),
    )
    available = find(project_folder, home, config.load(project_folder, os.environ).config.skills)
    found_path = next((each.path for each in available if each.name == name and each.path), "")
    folder = Path(name).expanduser().absolute() if os.path.sep in name or not found_path else Path(found_path)
    if not folder.is_dir():
        raise CommandError("SkillNotFoundError", f"no skill or folder named {name!r}", 3)
    other_skills = [each.skill for each in available if each.skill is not None and not each.why_off]
    rows = []
    for trial in trials(folder, other_skills, arguments.seconds):
        rows.append(msgspec.to_builtins(trial))
        if not arguments.json:
            detail = f": {terminal.truncate_line(trial.detail, 1000)}" if trial.detail else ""
            print(f"{trial.outcome}  {terminal.truncate_line(trial.name, 200)}{detail}", flush=True)
    command.print_result(arguments, {"path": str(folder), "trials": rows}, "")
    return 1 if any(row["outcome"] == "failed" for row in rows) else 0


def _package_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the new skill; with --zip: folder of an existing one")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", metavar="TEXT", help="create it from these instructions; - reads them from stdin")
    source.add_argument("--template", metavar="TEMPLATE", help="create it from a prompt template: a name or a file")
    source.add_argument("--session", metavar="REF", help="create a draft from the session of an agent")
    command.run_argument(parser)
    parser.add_argument("--description", metavar="TEXT", default="", help="description: purpose and when to use it")
    parser.add_argument("--output", metavar="FOLDER", default=".", help="output folder (default: current folder)")
    parser.add_argument("--zip", action="store_true", help="as NAME.zip")
    parser.add_argument("--force", action="store_true", help="write into an existing folder")


def _package(arguments: Namespace) -> int:
    from ...resources.skill_package import write_skill, write_zip
    from ..scratch import scratch

    name, output = replace_invalid_utf8(arguments.name), Path(arguments.output).expanduser().absolute()
    if arguments.run is not None and arguments.session is None:
        raise CommandError("UsageError", "--run needs --session: it is the run of that session's agent", 2)
    if arguments.prompt is None and arguments.template is None and arguments.session is None:
        if not arguments.zip or not Path(name).is_dir():
            raise CommandError(
                "UsageError",
                "no source given: pass --prompt, --template or --session; or the folder of a skill and --zip",
                2,
            )
        folder = Path(name).absolute()
        result_path = write_zip(folder, output / f"{folder.name}.zip")
    else:
        skill = _build_skill(arguments, name)
        if arguments.zip:
            with scratch() as scratch_folder:
                result_path = write_zip(write_skill(skill, scratch_folder), output / f"{skill.name}.zip")
        else:
            result_path = write_skill(skill, output, force=arguments.force)
    command.print_result(arguments, {"path": str(result_path)}, terminal.safe(str(result_path)))
    return 0


def _build_skill(arguments: Namespace, name: str) -> Any:
    from ...resources.skill_package import of_session, of_template
    from ...resources.skills import Skill

    description = replace_invalid_utf8(arguments.description)
    if arguments.session is not None:
        shown = Connection(run=arguments.run).call("show", {"ref": arguments.session, "messages": ALL_MESSAGES})
        messages = msgspec.convert(shown["messages"], list[Message])
        return of_session(shown["agent"]["task"], messages, name, description)
    if not description:
        raise ConfigError(
            "missing --description: state the purpose of the skill and when to use it, in the words of its users"
        )
    if arguments.template is not None:
        from ...resources.extensions import templates_for

        home = paths.home(os.environ)
        catalog = templates_for(config.load(Path.cwd(), os.environ).config, Path.cwd(), home)
        return of_template(catalog.find(replace_invalid_utf8(arguments.template)), name, description)
    return Skill(name, description, replace_invalid_utf8(command.text(arguments.prompt)))


AUTHORING: dict[str, tuple[str, CliCommand]] = {
    "install": (
        "install a skill from a folder, a zip file or a git repository",
        CliCommand(
            "Check and install a skill. Its source and hash are recorded.",
            "orch skills install https://example.org/skills.git --path review",
            _install_arguments,
            _install,
        ),
    ),
    "remove": (
        "remove an installed skill",
        CliCommand("Remove an installed skill.", "orch skills remove review", _remove_arguments, _remove),
    ),
    "test": (
        "test a skill without a model",
        CliCommand(
            "Test a skill offline: rules, files, scripts, its tests, and whether its description matches "
            "its test prompts.",
            "orch skills test ./review",
            _test_arguments,
            _test,
        ),
    ),
    "package": (
        "create a skill from a prompt, a template or a session",
        CliCommand(
            "Create a skill from a prompt, a template or a session, as a folder or a zip file; or zip an "
            "existing skill.",
            "orch skills package review --session 3 --output skills",
            _package_arguments,
            _package,
        ),
    ),
}


HEAD: Final = ["SKILL", "FROM", "ON", "HASH", "DESCRIPTION"]
NOT_FOUND: Final = 3
HASH_CHARS: Final = 12


def _available_skills(arguments: Namespace) -> list[Found]:
    folder, home = Path(arguments.cwd).absolute(), paths.home(os.environ)
    loaded = command.load_config(folder)
    if not loaded.config.skills.enabled:
        print("orch: skills.enabled is false: agents cannot use skills", file=sys.stderr)
    extensions = extension_specs(find_extensions(folder, home, loaded.config.extensions.load), home)
    return find(folder, home, loaded.config.skills, extensions=extensions)


def _list(arguments: Namespace) -> int:
    rows = [_row(each) for each in _available_skills(arguments)]
    for row in rows:
        if row["why_off"]:
            command.print_off(row["name"], row["why_off"])
    text = format_columns([HEAD, *map(_cells, rows)], text={4}) if rows else "no skills; see docs/guides/skills.md"
    command.print_result(arguments, rows, text)
    return 0


def _row(found: Found) -> dict[str, Any]:
    skill = found.skill
    row = installed_from(Path(found.path), paths.home(os.environ)) if found.path else None
    origin = (
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
        "installed": origin,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    on = "broken" if row["broken"] else "yes" if row["on"] else "no"
    return [
        terminal.one_line(row["name"]),
        row["where"],
        on,
        row["hash"][:HASH_CHARS],
        terminal.one_line(row["description"]),
    ]


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of a skill, as in `orch skills list`, or its folder")
    folder_argument(parser)


def _skill_folder(arguments: Namespace) -> tuple[Path, Found | None]:
    """Return the folder of the skill in the arguments, which is a path or a name. Raises CommandError."""
    name = replace_invalid_utf8(arguments.name)
    if os.path.sep in name or name in (".", ".."):
        return Path(name).expanduser().absolute(), None
    available = _available_skills(arguments)
    found = next((each for each in available if each.name == name), None)
    if found is None:
        known = ", ".join(each.name for each in available) or "none"
        raise CommandError(
            "SkillNotFoundError",
            f"no skill named {name!r}; known: {known}. To pass a folder, write its path: ./{name}",
            NOT_FOUND,
        )
    return Path(found.path), found


def _show(arguments: Namespace) -> int:
    folder, found = _skill_folder(arguments)
    skill, problems = check_skill(folder)
    if skill is None:
        raise ConfigError(f"{folder / FILES[0]}: {'; '.join(map(str, problems))}")
    files = sorted(path.relative_to(folder).as_posix() for path in skill_files(folder) if path != file_of(folder))
    row = (_row(found) if found is not None else {"path": str(folder)}) | msgspec.to_builtins(skill) | {"files": files}
    command.print_result(arguments, row, _page(row, skill))
    return 0


def _page(row: dict[str, Any], skill: SkillFile) -> str:
    allowed = skill.allowed
    tools_text = f"{' '.join(allowed)} (here: {', '.join(sorted(tools_named(allowed)))})" if allowed else ""
    fields = {
        "name": skill.name,
        "description": skill.description,
        "license": skill.license,
        "compatibility": skill.compatibility,
        "tools": tools_text,
        "folder": row["path"],
        "hash": row.get("hash", ""),
        "installed": _format_origin(row.get("installed")),
        "off": row.get("why_off", ""),
        "files": ", ".join(row["files"]),
    }
    lines = [f"{name + ':':15}{terminal.truncate_line(str(value), 2000)}" for name, value in fields.items() if value]
    return "\n".join((*lines, "", terminal.safe_for_stdout(skill.body)))


def _format_origin(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    commit = f", commit {row['commit'][:HASH_CHARS]}" if row["commit"] else ""
    return f"from {row['source']}{commit}, {row['at']}{'; changed since' if row['changed'] else ''}"


def _validate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="folder of a skill")


def _validate(arguments: Namespace) -> int:
    """Print the problems of each folder. Return 1 if there are problems."""
    rows = []
    for name in map(replace_invalid_utf8, arguments.folders):
        folder = Path(name).expanduser().absolute()
        try:
            skill, problems = check_skill(folder)
            problem_rows = [{"line": each.line, "field": each.field, "problem": each.what} for each in problems]
            list(skill_files(folder))
            if skill is not None and not skill.body:
                problem_rows.append({"line": 0, "field": "", "problem": "it has no instructions below the header"})
        except ConfigError as error:
            problem_rows = [{"line": 0, "field": "", "problem": str(error)}]
        rows.append({"path": str(folder), "valid": not problem_rows, "problems": problem_rows})
    command.print_result(arguments, rows, "\n".join(line for row in rows for line in _format_result(row)))
    return 0 if all(row["valid"] for row in rows) else 1


def _format_result(row: dict[str, Any]) -> list[str]:
    path = terminal.safe(row["path"])
    if row["valid"]:
        return [f"{path}: a skill"]
    problems = (FrontMatterProblem(each["line"], each["field"], each["problem"]) for each in row["problems"])
    return [f"{path}: {terminal.truncate_line(str(each), 400)}" for each in problems]


def _project_skill_folder(arguments: Namespace) -> Path:
    skill_folder, found = _skill_folder(arguments)
    if found is not None and found.where != "project":
        raise CommandError(
            "ConfigError", f"skill {found.name!r} is not a project's ({found.where}): it needs no trust", 2
        )
    return skill_folder


def _trust(arguments: Namespace) -> int:
    skill_folder = _project_skill_folder(arguments)
    skill = trust(skill_folder, paths.home(os.environ))
    command.print_trusted(arguments, skill.name, str(skill_folder), hash=skill.hash)
    return 0


def _untrust(arguments: Namespace) -> int:
    skill_folder = _project_skill_folder(arguments)
    command.print_untrusted(
        arguments, str(skill_folder), was_trusted=revoke(paths.home(os.environ), "skill", skill_folder)
    )
    return 0


VERBS = {
    "skills": CommandGroup(
        "Skills: instructions for one kind of work, which agents read when they need them.",
        "orch skills list",
        {
            "list": (
                "list skills of a folder",
                CliCommand(
                    "List the skills of a folder: description, and the reason why one is off.",
                    "orch skills list --json",
                    folder_argument,
                    _list,
                ),
            ),
            "show": (
                "print a skill",
                CliCommand(
                    "Print a skill: description, tools, files and text.",
                    "orch skills show review",
                    _show_arguments,
                    _show,
                ),
            ),
            "validate": (
                "check folders against the skill rules",
                CliCommand(
                    "Check folders against the rules of agentskills.io. Exit code 1 if one fails.",
                    "orch skills validate ./review",
                    _validate_arguments,
                    _validate,
                ),
            ),
            **AUTHORING,
            "trust": (
                "trust the present version of a project's skill",
                CliCommand(
                    "Trust the present version of a project's skill. Read it first. Any change requires new trust.",
                    "orch skills trust review",
                    _show_arguments,
                    _trust,
                ),
            ),
            "untrust": (
                "revoke the trust of a project's skill",
                CliCommand(
                    "Revoke the trust of a project's skill.", "orch skills untrust review", _show_arguments, _untrust
                ),
            ),
        },
    )
}
