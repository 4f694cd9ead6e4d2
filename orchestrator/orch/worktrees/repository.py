"""The private repository in which the root's git works on the repository of the user.

The configuration of a private repository is written by orch. Refs, objects and the list of ignored files are links to
the repository of the user, so that a commit or a ref that git writes is there at once. Settings that name a program
never arrive in a private repository: a few values, such as the user's name, are copied.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from orch_protocol.core.errors import WorktreeError
from orch_worker.tools.api.base import ToolError
from orch_worker.tools.shell.git_repository import GitRepository, repository

from .git import Git, run

__all__ = [
    "SCRATCH_PREFIX",
    "PrivateRepository",
    "check_links",
    "configuration",
    "find_repository",
    "private_repository",
]

SCRATCH_PREFIX: Final = ".git-"
"""Prefix of temporary folders beside the worktrees."""
LINKS: Final = ("refs", "packed-refs", "objects", "logs", "reftable", "shallow", "info/exclude", "info/attributes")
COPIED: Final = (
    r"^(core\.(filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|excludesfile|sharedrepository)"
    r"|core\.sparsecheckout(cone)?|extensions\.(objectformat|refstorage)"
    r"|(user|author|committer)\.(name|email))$"
)
"""The settings that are copied from the user's configuration. None of them names a program."""
SPARSE: Final = "core.sparsecheckout"
REF_STORAGE: Final = "extensions.refstorage"
AGENT: Final = {"core.bare": "false", "gc.auto": "0", "maintenance.auto": "false"}
OWN: Final = {
    **AGENT,
    "core.hookspath": os.devnull,
    "core.fsmonitor": "false",
}


class PrivateRepository(Struct, frozen=True):
    """A private repository in `folder` for the user's repository `common`.

    `settings` are the values from the user's configuration, with lower-case keys.
    """

    folder: str
    common: str
    settings: Mapping[str, str]

    @property
    def _view(self) -> str:
        return os.path.join(self.folder, "common")

    @property
    def git(self) -> Git:
        """Git without a work tree."""
        return self._with_head("bare", self.folder, "ref: refs/heads/none")

    @property
    def is_partial(self) -> bool:
        """Whether the user's repository may lack objects, which only its origin has."""
        return any(Path(self.common, "objects", "pack").glob("*.promisor"))

    @property
    def agent_configuration(self) -> str:
        """The text of the configuration of an agent's repository."""
        return configuration(
            {name: value for name, value in {**_kept(self.settings), **AGENT}.items() if name != REF_STORAGE}
        )

    def in_work_tree(self, found: GitRepository) -> Git:
        """Return git for the user's work tree `found`, with the HEAD and the index of this work tree."""
        sparse = {name: value for name, value in self.settings.items() if name.startswith(SPARSE)}
        return Git(GitRepository(found.top, found.part, self._view), sparse)

    def detached(self, top: str, commit: str) -> Git:
        """Return git for the files in `top`, with `commit` as HEAD and without an index."""
        return self._with_head("detached", top, commit)

    def _with_head(self, name: str, top: str, head: str) -> Git:
        part = os.path.join(self.folder, name)
        os.makedirs(part, exist_ok=True)
        # Some versions of git look for refs as this file says, and not as the variable does.
        for file, text in (("HEAD", head), ("commondir", self._view)):
            Path(part, file).write_bytes(os.fsencode(f"{text}\n"))
        return Git(GitRepository(top, part, self._view))


def find_repository(folder: str) -> GitRepository:
    """Return the repository of the work tree that contains `folder`.

    Raises WorktreeError if there is no such work tree, or if another user owns the repository and the user's
    configuration does not name it as safe.
    """
    try:
        found = repository(folder)
    except ToolError as error:
        raise WorktreeError(str(error).rstrip(".")) from error
    if not found.is_own:
        # Git checks here whether the user trusts the repository.
        run(found.top, {}, ("rev-parse", "--git-dir"), (0,), user_configuration=True)
    return found


@contextmanager
def private_repository(common: str, parent: str, part: str = "") -> Iterator[PrivateRepository]:
    """Yield a private repository for the user's repository `common`. It is a temporary folder in `parent`.

    `part` is the folder of a work tree's own files. Raises WorktreeError.
    """
    if not os.path.isdir(common):
        raise WorktreeError(f"repository {common} does not exist any more")
    check_links(common)
    settings = _settings(common, part or common)
    folder = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent if os.path.isdir(parent) else None)
    try:
        view = os.path.join(folder, "common")
        os.makedirs(os.path.join(view, "info"))
        for name in LINKS:
            if os.path.exists(source := os.path.join(common, name)) or name == "packed-refs":
                if name.startswith("info/") and not os.path.isfile(source):
                    continue  # git would wait for the writer of a pipe
                os.symlink(source, os.path.join(view, name))
        with open(os.path.join(view, "config"), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(configuration({**_kept(settings), **OWN}))
        yield PrivateRepository(folder, common, settings)
    except OSError as error:
        raise WorktreeError(f"cannot open repository {common}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_links(common: str) -> None:
    """Raise WorktreeError if a link in the repository `common` leads refs or objects out of the repository.

    An agent can write such links in its folder. The root would read and write repositories that the agent may not use.
    """
    inside = os.path.join(os.path.realpath(common), "")
    for name in (*LINKS, "HEAD", "index"):
        for path in _links(os.path.join(common, name)):
            if not (real := os.path.realpath(path)).startswith(inside):
                raise WorktreeError(
                    f"{path} is a link to {real}, outside the repository: copy the repository with git clone first"
                )


def _links(path: str) -> Iterator[str]:
    """Yield the links in `path`, which may be a link itself."""
    if os.path.islink(path):
        yield path
        return
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield entry.path
                elif entry.is_dir():
                    yield from _links(entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return


def _kept(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if not name.startswith(SPARSE)}


def configuration(settings: Mapping[str, str]) -> str:
    """Return the text of a configuration file of git with `settings`."""
    version = int(any(name.startswith("extensions.") for name in settings))
    lines = ["[core]", f"\trepositoryformatversion = {version}"]
    for name, value in settings.items():
        section, _, key = name.partition(".")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines += [f"[{section}]", f'\t{key} = "{escaped}"']
    return "\n".join([*lines, ""])


def _settings(common: str, part: str) -> dict[str, str]:
    """Return the values of the user's settings that are copied. Raises WorktreeError.

    Git reads configuration files here, and starts no program for this.
    """
    query = ("config", "--null", "--includes", "--get-regexp", COPIED)
    env = {"GIT_DIR": part, "GIT_COMMON_DIR": common}
    _, output = run(common, env, query, (0, 1), user_configuration=True)
    settings = {}
    for entry in os.fsdecode(output).split("\0"):
        name, has_value, value = entry.partition("\n")
        if name:
            settings[name] = value if has_value else "true"
    excludes = os.path.expanduser(settings.pop("core.excludesfile", ""))
    if os.path.isabs(excludes) and os.path.isfile(excludes):
        settings["core.excludesfile"] = excludes
    return settings
