"""The tools git_status, git_diff and git_log, which never run programs that the repository configures."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from ...system.programs import PROGRAM_PATH
from ..api.base import ToolContext, ToolError, ToolOutput, tool
from ..files.read import path_inside
from .command import RunningCommand
from .environment import git_environment
from .git_repository import SAFE, GitRepository, repository, repository_root
from .output_capture import OutputCapture, plain_output
from .sandboxed_exec import covered_starter

__all__ = ["git_diff", "git_log", "git_status"]

MAX_WRITTEN: Final = 8 << 20
REVISION: Final = re.compile(r"[\w.@^~][\w./@^~{}:+-]*")
IN_BRACES: Final = re.compile(r"\{[^{}]*\}")
FORMAT: Final = "%h %ad %an%d%n    %s"
# Do not enter submodules, and do not show their contents.
WITHOUT_SUBMODULES: Final = ("--ignore-submodules=dirty", "--submodule=short")
NAMES: Final = ("--name-only", "--relative", "--no-renames", "-z")
MAX_NAMED: Final = 1_000
FILTERS: Final = r"^filter\..*\.(clean|smudge|process|required)$"
REPOSITORY_SCOPES: Final = ("local", "worktree")


def _in_repository(context: ToolContext) -> bool:
    """Return whether git is installed and the agent's folder is in a repository."""
    return repository_root(os.fspath(context.cwd)) != "" and _installed()


@cache
def _installed() -> bool:
    return shutil.which("git", path=PROGRAM_PATH) is not None


@tool(available=_in_repository)
async def git_status(context: ToolContext, path: str = ".") -> str:
    """Show the branch, and the files that differ from the last commit.

    Args:
        path: Only this file, or files below this folder.
    """
    return await _git(
        context, "status", "--short", "--branch", "--ignore-submodules=dirty", "--", _relative_path(context, path)
    )


@tool(available=_in_repository)
async def git_diff(
    context: ToolContext,
    ref: str | None = None,
    path: str = ".",
    staged: bool = False,
    context_lines: Annotated[int, Meta(ge=0, le=100)] = 3,
) -> ToolOutput:
    """Show changes line by line.

    Args:
        ref: A commit to compare with, or two as in "main..topic". Without it, unstaged changes are shown.
        path: Only this file, or files below this folder.
        staged: Whether to show staged changes instead.
        context_lines: Number of unchanged lines around each change.
    """
    options = ["--no-ext-diff", "--no-textconv", *WITHOUT_SUBMODULES, f"--unified={context_lines}"]
    diff_arguments = [*options, *(["--cached"] if staged else []), *([_revision(ref)] if ref is not None else [])]
    paths = [_relative_path(context, path)]
    if (file_filter := context.file_filter("git_diff", path_inside(context, path))) is not None:
        if ref is not None and ":" in IN_BRACES.sub("", ref):
            raise ToolError(
                f"{ref!r} names a folder or file of a commit: name commits, and the folder or file as path."
            )
        git_call, env = await _prepare_call(context, "diff")
        changed_names = await _output(git_call, (0,), "diff", *diff_arguments, *NAMES, "--", *paths, env=env)
        names = [os.fsdecode(name) for name in changed_names.split(b"\0") if name]
        real_paths = {name: str(context.cwd.resolve() / name) for name in names}
        visible_names = [
            name for name in names if not file_filter.skips(real_paths[name]) and file_filter.may_show(real_paths[name])
        ]
        # In git, a path also matches files below a former folder of the same name.
        parent_names = {
            str(folder) for name in set(names).difference(visible_names) for folder in PurePosixPath(name).parents
        }
        visible_names = [name for name in visible_names if name not in parent_names]
        if len(visible_names) < len(names) or len(names) <= MAX_NAMED:
            paths = visible_names  # The list of paths is fixed, so that later changes do not add files.
        if len(paths) > MAX_NAMED:
            raise ToolError(f"{len(paths):,} files differ: select some of them with path.")
    text = (await _git(context, "diff", *diff_arguments, "--", *paths) if paths else "") or "No differences."
    return (
        ToolOutput(text) if file_filter is None else ToolOutput(text + file_filter.note, marks=file_filter.taint_labels)
    )


@tool(available=_in_repository)
async def git_log(
    context: ToolContext, count: Annotated[int, Meta(ge=1, le=1000)] = 20, ref: str = "HEAD", path: str = "."
) -> str:
    """List commits, newest first: hash, date, author, subject.

    Args:
        count: Maximum number of commits.
        ref: The first commit, or a range as in "v1..v2".
        path: Only commits that changed this file, or files below this folder.
    """
    options = ["--no-show-signature", "--date=iso-strict", f"--format={FORMAT}", f"--max-count={count}"]
    return await _git(context, "log", *options, _revision(ref), "--", _relative_path(context, path)) or "No commits."


async def _git(context: ToolContext, *arguments: str) -> str:
    capture = OutputCapture()
    git_call, env = await _prepare_call(context, arguments[0])
    code, exceeded_output = await git_call.git(capture, arguments, env)
    text = capture.text().rstrip("\n")
    if code != 0 and not exceeded_output:
        raise ToolError(text or f"git ended with {code}.")
    return text


async def _prepare_call(context: ToolContext, tool: str) -> tuple[_GitCall, dict[str, str]]:
    """Return the git call and its environment variables. Raise ToolError if git does not trust the repository."""
    git_call = _GitCall(context, tool, repository(os.fspath(context.cwd)))
    if not git_call.found.is_own:
        # This call makes git check whether the repository is trusted.
        await _output(git_call, (0,), "rev-parse", "--git-dir", env={})
    return git_call, {**git_call.found.env, **await _without_filters(git_call)}


async def _without_filters(git_call: _GitCall) -> dict[str, str]:
    """Return environment variables that disable the repository's own filters.

    Filters are programs that process compared files.
    """
    query = ("config", "--null", "--show-scope", "--includes", "--name-only", "--get-regexp", FILTERS)
    output = await _output(git_call, (0, 1), *query, env=git_call.found.env)
    words = os.fsdecode(output).split("\0")
    names = [name for scope, name in zip(words[::2], words[1::2], strict=False) if scope in REPOSITORY_SCOPES]
    env = {"GIT_CONFIG_COUNT": str(len(names))}
    for number, name in enumerate(names):
        env[f"GIT_CONFIG_KEY_{number}"] = name
        env[f"GIT_CONFIG_VALUE_{number}"] = "false" if name.endswith(".required") else ""
    return env


async def _output(git_call: _GitCall, codes: Collection[int], *arguments: str, env: Mapping[str, str]) -> bytes:
    """Return the output of git for `arguments`. Raise ToolError unless git exits with one of `codes`."""
    output = bytearray()
    code, exceeded_output = await git_call.git(output.extend, arguments, env)
    if code not in codes or exceeded_output:
        raise ToolError(plain_output(bytes(output[:1000])).strip() or f"git ended with {code}.")
    return bytes(output)


class _GitCall(NamedTuple):
    """A tool call that runs git on the repository `found`."""

    context: ToolContext
    tool: str
    found: GitRepository

    async def git(
        self, sink: Callable[[bytes], None], arguments: Sequence[str], extra_env: Mapping[str, str]
    ) -> tuple[int | None, bool]:
        """Run git and pass its output to `sink`. Return the exit code, and whether git was killed for too much output.

        Git runs as a command of the agent: it cannot read denied paths, credentials and orch's folders. Raise ToolError
        after a timeout.
        """
        name, context = f"git_{self.tool}", self.context
        env = {**git_environment(context, name), **extra_env, "GIT_NO_LAZY_FETCH": "1"}
        start, _ = await covered_starter(context, name, read=self.found.folders)
        argv = ["git", *SAFE, *arguments]
        command = RunningCommand(argv, cwd=context.cwd, env=env, sink=sink, max_bytes=MAX_WRITTEN, start=start)
        try:
            if not await command.wait(context.seconds * 0.4):
                raise ToolError(f"git {arguments[0]} exceeded the time limit and was ended.")
        finally:
            command.kill()
        return command.code, command.exceeded_output


def _relative_path(context: ToolContext, path: str) -> str:
    return str(path_inside(context, path).relative_to(context.cwd.resolve()))


def _revision(ref: str) -> str:
    if not REVISION.fullmatch(ref):
        raise ToolError(f"{ref!r} is not the name of a commit.")
    return ref
