"""Looking at a Git repository: git_status, git_diff, git_log. Nothing that the repository configures is run."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from ..api.base import ToolContext, ToolError, ToolOutput, tool
from ..files.read import path_inside
from .command import RunningCommand
from .environment import tool_environment
from .git_repository import GitRepository, repository, top_of
from .output_capture import OutputCapture, plain_output
from .sandboxed_exec import process_starter

__all__ = ["git_diff", "git_log", "git_status"]

MAX_WRITTEN: Final = 8 << 20
REVISION: Final = re.compile(r"[\w.@^~][\w./@^~{}:+-]*")
IN_BRACES: Final = re.compile(r"\{[^{}]*\}")
FORMAT: Final = "%h %ad %an%d%n    %s"
# Settings of a repository that would start programs of its choice, or reach out.
SAFE: Final = (
    *("--no-pager", "--no-optional-locks", "--literal-pathspecs"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never"),
    *("-c", "log.showSignature=false", "-c", "core.quotePath=false", "-c", "color.ui=false"),
)
# Their own repositories are not entered, nor is what they hold shown.
WITHOUT_SUBMODULES: Final = ("--ignore-submodules=dirty", "--submodule=short")
NAMES: Final = ("--name-only", "--relative", "--no-renames", "-z")
MOST_NAMED: Final = 1_000
FILTERS: Final = r"^filter\..*\.(clean|smudge|process|required)$"
THEIR_OWN: Final = ("local", "worktree")


def _in_repository(context: ToolContext) -> bool:
    """Whether there is Git, and a repository around the agent's folder."""
    return top_of(os.fspath(context.cwd)) != "" and _installed()


@cache
def _installed() -> bool:
    return shutil.which("git") is not None


@tool(category="git", available=_in_repository)
async def git_status(context: ToolContext, path: str = ".") -> str:
    """Show the branch, and which files differ from the last commit.

    Args:
        path: Only below this folder, or this file.
    """
    return await _git(
        context, "status", "--short", "--branch", "--ignore-submodules=dirty", "--", _below(context, path)
    )


@tool(category="git", available=_in_repository)
async def git_diff(
    context: ToolContext,
    ref: str | None = None,
    path: str = ".",
    staged: bool = False,
    context_lines: Annotated[int, Meta(ge=0, le=100)] = 3,
) -> ToolOutput:
    """Show what changed, line by line.

    Args:
        ref: A commit to compare the files to, or two as in "main..topic"; without it, what is not staged is shown.
        path: Only below this folder, or this file.
        staged: Whether to show what is staged instead.
        context_lines: How many unchanged lines to show around each change.
    """
    options = ["--no-ext-diff", "--no-textconv", *WITHOUT_SUBMODULES, f"--unified={context_lines}"]
    what = [*options, *(["--cached"] if staged else []), *([_revision(ref)] if ref is not None else [])]
    where = [_below(context, path)]
    if (sieve := context.sieve("git_diff", path_inside(context, path))) is not None:
        if ref is not None and ":" in IN_BRACES.sub("", ref):
            raise ToolError(
                f"{ref!r} names a folder or file of a commit: name commits, and the folder or file as path."
            )
        run, env = await _begun(context, "diff")
        listed = await _said(run, (0,), "diff", *what, *NAMES, "--", *where, env=env)
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        real = {name: str(context.cwd.resolve() / name) for name in names}
        shown = [name for name in names if not sieve.keeps_away(real[name]) and sieve.lets(real[name])]
        # To Git a file is also what was below a folder of its name.
        over = {str(folder) for name in set(names).difference(shown) for folder in PurePosixPath(name).parents}
        shown = [name for name in shown if name not in over]
        if len(shown) < len(names) or len(names) <= MOST_NAMED:
            where = shown  # and not what differs by now
        if len(where) > MOST_NAMED:
            raise ToolError(f"{len(where):,} files differ: choose some with path.")
    text = (await _git(context, "diff", *what, "--", *where) if where else "") or "No differences."
    return ToolOutput(text) if sieve is None else ToolOutput(text + sieve.note, marks=sieve.marks)


@tool(category="git", available=_in_repository)
async def git_log(
    context: ToolContext, count: Annotated[int, Meta(ge=1, le=1000)] = 20, ref: str = "HEAD", path: str = "."
) -> str:
    """List commits, newest first: hash, date, author, subject.

    Args:
        count: How many to list at most.
        ref: Where to begin, or a range as in "v1..v2".
        path: Only those that changed something below this folder, or this file.
    """
    options = ["--no-show-signature", "--date=iso-strict", f"--format={FORMAT}", f"--max-count={count}"]
    return await _git(context, "log", *options, _revision(ref), "--", _below(context, path)) or "No commits."


async def _git(context: ToolContext, *arguments: str) -> str:
    capture = OutputCapture()
    run, env = await _begun(context, arguments[0])
    code, flooded = await run.git(capture, arguments, env)
    text = capture.text().rstrip("\n")
    if code != 0 and not flooded:
        raise ToolError(text or f"git ended with {code}.")
    return text


async def _begun(context: ToolContext, tool: str) -> tuple[_GitCall, dict[str, str]]:
    """Return what Git is run with, and its variables. Raises ToolError when the repository is not to be trusted."""
    run = _GitCall(context, tool, repository(os.fspath(context.cwd)))
    if not run.found.is_own:
        await _said(run, (0,), "rev-parse", "--git-dir", env={})  # whether it is to be trusted is Git's to say
    return run, {**run.found.env, **await _without_filters(run)}


async def _without_filters(run: _GitCall) -> dict[str, str]:
    """Return the variables that switch off the repository's own filters: programs run on what is compared."""
    query = ("config", "--null", "--show-scope", "--includes", "--name-only", "--get-regexp", FILTERS)
    said = await _said(run, (0, 1), *query, env=run.found.env)
    words = os.fsdecode(said).split("\0")
    names = [name for scope, name in zip(words[::2], words[1::2], strict=False) if scope in THEIR_OWN]
    env = {"GIT_CONFIG_COUNT": str(len(names))}
    for number, name in enumerate(names):
        env[f"GIT_CONFIG_KEY_{number}"] = name
        env[f"GIT_CONFIG_VALUE_{number}"] = "false" if name.endswith(".required") else ""
    return env


async def _said(run: _GitCall, codes: Collection[int], *arguments: str, env: Mapping[str, str]) -> bytes:
    """Return what Git says to `arguments`. Raises ToolError unless it ends with one of `codes`."""
    said = bytearray()
    code, flooded = await run.git(said.extend, arguments, env)
    if code not in codes or flooded:
        raise ToolError(plain_output(bytes(said[:1000])).strip() or f"git ended with {code}.")
    return bytes(said)


class _GitCall(NamedTuple):
    """One call of a tool: Git is run for it on the repository that was found."""

    context: ToolContext
    tool: str
    found: GitRepository

    async def git(
        self, sink: Callable[[bytes], None], arguments: Sequence[str], more: Mapping[str, str]
    ) -> tuple[int | None, bool]:
        """Run git, its output going to `sink`; return its exit code, and whether it was cut off for writing too much.

        Raises ToolError when it was not done in time.
        """
        name, context = f"git_{self.tool}", self.context
        env = {**tool_environment(context, name), **more, "GIT_NO_LAZY_FETCH": "1"}
        start = process_starter(context, name, self.found.places if context.sandbox.of(name) >= "L2" else ())
        argv = ["git", *SAFE, *arguments]
        command = RunningCommand(argv, cwd=context.cwd, env=env, sink=sink, flood=MAX_WRITTEN, start=start)
        try:
            if not await command.wait(context.seconds * 0.4):
                raise ToolError(f"git {arguments[0]} was not done in time and was ended.")
        finally:
            command.kill()
        return command.code, command.flooded


def _below(context: ToolContext, path: str) -> str:
    return str(path_inside(context, path).relative_to(context.cwd.resolve()))


def _revision(ref: str) -> str:
    if not REVISION.fullmatch(ref):
        raise ToolError(f"{ref!r} is not the name of a commit.")
    return ref
