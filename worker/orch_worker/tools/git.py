"""Looking at a Git repository: git_status, git_diff, git_log. Nothing that the repository configures is run."""

from __future__ import annotations

import re
import shutil
from functools import cache
from typing import Annotated, Final

from msgspec import Meta

from .base import ToolContext, ToolError, tool
from .capture import Capture
from .command import Command
from .environment import tool_environment
from .files import inside

__all__ = ["git_diff", "git_log", "git_status"]

MAX_WRITTEN: Final = 8 << 20
REVISION: Final = re.compile(r"[\w.@^~][\w./@^~{}:+-]*")
FORMAT: Final = "%h %ad %an%d%n    %s"
# Settings of a repository that would start programs of its choice, or reach out.
SAFE: Final = (
    *("--no-pager", "--no-optional-locks", "--literal-pathspecs"),
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never"),
    *("-c", "log.showSignature=false", "-c", "core.quotePath=false", "-c", "color.ui=false"),
)
FILTERS: Final = r"^filter\..*\.(clean|smudge|process|required)$"
THEIR_OWN: Final = ("local", "worktree")


def _in_repository(context: ToolContext) -> bool:
    """Whether there is Git, and a repository around the agent's folder."""
    folder = context.cwd
    return any((each / ".git").exists() for each in (folder, *folder.parents)) and _git() is not None


@cache
def _git() -> str | None:
    return shutil.which("git")


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
) -> str:
    """Show what changed, line by line.

    Args:
        ref: A commit to compare the files to, or two as in "main..topic"; without it, what is not staged is shown.
        path: Only below this folder, or this file.
        staged: Whether to show what is staged instead.
        context_lines: How many unchanged lines to show around each change.
    """
    options = ["--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", f"--unified={context_lines}"]
    shown = await _git(
        context,
        "diff",
        *options,
        *(["--cached"] if staged else []),
        *([_revision(ref)] if ref is not None else []),
        "--",
        _below(context, path),
    )
    return shown or "No differences."


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
    return await _run(context, *await _without_filters(context), *arguments)


async def _without_filters(context: ToolContext) -> list[str]:
    """Return the options that switch off the repository's own filters: programs that are run on what is compared."""
    query = ("config", "--null", "--show-scope", "--includes", "--name-only", "--get-regexp", FILTERS)
    words = (await _run(context, *query, codes=(0, 1))).split("\0")
    pairs = zip(words[::2], words[1::2], strict=False)
    names = [name for scope, name in pairs if scope in THEIR_OWN]
    values = ("false" if name.endswith(".required") else "" for name in names)
    return [word for name, value in zip(names, values, strict=True) for word in ("-c", f"{name}={value}")]


async def _run(context: ToolContext, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    """Return what `git` with `arguments` says. Raises ToolError with its words when it fails."""
    capture = Capture()
    env = tool_environment(context) | {"GIT_NO_LAZY_FETCH": "1"}
    command = Command(["git", *SAFE, *arguments], cwd=context.cwd, env=env, sink=capture, flood=MAX_WRITTEN)
    try:
        if not await command.wait(context.seconds * 0.9):
            raise ToolError(f"git {arguments[0]} was not done in time and was ended.")
    finally:
        command.kill()
    text = capture.text().rstrip("\n")
    if command.code not in codes and not command.flooded:
        raise ToolError(text or f"git ended with {command.code}.")
    return text


def _below(context: ToolContext, path: str) -> str:
    return str(inside(context, path).relative_to(context.cwd.resolve()))


def _revision(ref: str) -> str:
    if not REVISION.fullmatch(ref):
        raise ToolError(f"{ref!r} is not the name of a commit.")
    return ref
