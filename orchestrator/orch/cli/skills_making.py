"""`orch skills install`, `remove`, `test`, `package`: skills from elsewhere, tried, and made of what is there."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import msgspec

from orch_protocol.errors import ConfigError
from orch_protocol.messages import Message

from .. import config, paths
from ..skills.finding import FOLDER, find, trust
from . import render, words
from .connection import Connection
from .failure import Failure
from .verb import Verb

__all__ = ["MAKING", "folder_argument"]

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
    from ..skills.installing import install

    home, into = paths.private_dir(paths.home(os.environ)), _into(arguments)
    source, path, ref = (words.clean(getattr(arguments, name)) for name in ("source", "path", "ref"))
    skill, row = install(source, into, home, path=path, ref=ref, force=arguments.force)
    if arguments.project:
        trust(Path(skill.path), home)  # whoever installs it says that it may be read
    commit = f", commit {row.commit[:12]}" if row.commit else ""
    said = f"installed: {skill.name} in {render.safe(skill.path)}, from {render.safe(row.source)}{commit}"
    words.say(arguments, {"name": skill.name, "path": skill.path} | {"installed": msgspec.to_builtins(row)}, said)
    return 0


def _remove_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a skill that was installed")
    parser.add_argument("--force", action="store_true", help="also one that was not installed, or was changed since")
    _project_argument(parser)


def _remove(arguments: Namespace) -> int:
    from ..skills.installing import remove

    gone = remove(words.clean(arguments.name), _into(arguments), paths.home(os.environ), force=arguments.force)
    words.say(arguments, {"removed": str(gone)}, f"removed: {render.safe(str(gone))}")
    return 0


def _test_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a skill, as orch skills list names it, or its folder")
    parser.add_argument(
        "--seconds", type=words.duration, default=60.0, metavar="S", help="how long a test may take (60)"
    )
    folder_argument(parser)


def _test(arguments: Namespace) -> int:
    """Try the skill and say what became of each thing; 1 when anything failed."""
    from ..skills.trials import trials

    name, here, home = words.clean(arguments.name), Path(arguments.cwd).absolute(), paths.home(os.environ)
    there = find(here, home, config.load(here, os.environ).config.skills)
    named = next((each.path for each in there if each.name == name and each.path), "")
    folder = Path(name).expanduser().absolute() if os.path.sep in name or not named else Path(named)
    if not folder.is_dir():
        raise Failure("SkillNotFoundError", f"there is no skill {name!r}, nor a folder", 3)
    others = [each.skill for each in there if each.skill is not None and not each.why_off]
    rows = []
    for trial in trials(folder, others, arguments.seconds):
        rows.append(msgspec.to_builtins(trial))
        if not arguments.json:
            why = f": {render.line(trial.detail, 1000)}" if trial.detail else ""
            print(f"{trial.outcome}  {render.line(trial.name, 200)}{why}", flush=True)
    words.say(arguments, {"path": str(folder), "trials": rows}, "")
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
    from ..skills.packing import packed, written
    from .scratch import scratch

    name, output = words.clean(arguments.name), Path(arguments.output).expanduser().absolute()
    if arguments.prompt is None and arguments.template is None and arguments.session is None:
        if not arguments.zip or not Path(name).is_dir():
            raise Failure(
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
    words.say(arguments, {"path": str(made)}, render.safe(str(made)))
    return 0


def _made(arguments: Namespace, name: str) -> Any:
    from ..skills.packing import of_session, of_template
    from ..skills.skill import Skill

    description = words.clean(arguments.description)
    if arguments.session is not None:
        shown = Connection().call("show", {"ref": arguments.session, "messages": EVERYTHING})
        messages = msgspec.convert(shown["messages"], list[Message])
        return of_session(shown["agent"]["task"], messages, name, description)
    if not description:
        raise ConfigError("a skill needs a --description: what it is for and when, in the words of those who ask")
    if arguments.template is not None:
        from ..extensions import templates_for

        home = paths.home(os.environ)
        there = templates_for(config.load(Path.cwd(), os.environ).config, Path.cwd(), home)
        return of_template(there.find(words.clean(arguments.template)), name, description)
    return Skill(name, description, words.clean(words.text(arguments.prompt)))


MAKING: dict[str, tuple[str, Verb]] = {
    "install": (
        "copy one from a folder, a zip file or a repository",
        Verb(
            "Install a skill: it is checked first, and where it is from, with the hash of it, is kept.",
            "orch skills install https://example.org/skills.git --path review",
            _install_arguments,
            _install,
        ),
    ),
    "remove": (
        "delete one that was installed",
        Verb("Remove a skill that was installed.", "orch skills remove review", _remove_arguments, _remove),
    ),
    "test": (
        "try one without a model",
        Verb(
            "Try a skill offline: rules, files, scripts, its tests, and whether its description fits its prompts.",
            "orch skills test ./review",
            _test_arguments,
            _test,
        ),
    ),
    "package": (
        "make one of a prompt, a template or a session",
        Verb(
            "Make a skill of a prompt, a template or a session, as a folder or a zip file; or a zip file of a skill.",
            "orch skills package review --session 3 --output skills",
            _package_arguments,
            _package,
        ),
    ),
}
