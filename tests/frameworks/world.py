"""What the tests of all frameworks have in common: a strict model server, and checks of what it got.

The server runs in a thread, and the SDKs find it by their environment variables. Its model reads the files that a
question names, and searches its archives for quoted text.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from docs.test_readme import blocks, expected, matches
from orch_worker.session.log.append_log import AppendLog
from source_tree import ROOT
from wire.model_server import Answer, Request
from wire.model_server_beside import Apart, reads_files

RECALLS = ("search_archive", "read_archive")
RECORD = "[archived turn]"
LIST = "# Archived turns"
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
"""A PNG file of one pixel, in base64."""


def log_of(name: str) -> str:
    """Return the content of a file. Each file has lines that no other file has."""
    return "".join(f"{name}: pressure {number} bar\n" for number in range(900))


@contextmanager
def serving(model: Callable[[Request], Answer] = reads_files) -> Iterator[Sent]:
    """Start a model server, and set the environment variables of the SDKs."""
    with Apart(model) as apart, pytest.MonkeyPatch.context() as patch:
        for name, value in apart.env.items():
            patch.setenv(name, value)
        yield Sent(apart)


class Sent:
    """The requests that the server got."""

    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        self.url = apart.server.url

    @property
    def requests(self) -> list[str]:
        """The bodies, as text."""
        return [request.raw.decode() for request in self._apart.server.requests]

    @property
    def sizes(self) -> list[int]:
        """The sizes of the bodies in bytes."""
        return [len(request.raw) for request in self._apart.server.requests]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies."""
        return [request.body for request in self._apart.server.requests]

    def check(self, *, folded: bool = True) -> None:
        """Check that the server refused nothing, and whether the last request contains records."""
        assert self._apart.server.refused == []
        assert (RECORD in self.requests[-1]) is folded, self.requests[-1][:2000]
        assert (LIST in self.requests[-1]) is folded, self.requests[-1][:2000]

    def tools(self, place: int = -1) -> list[str]:
        """Return the names of the tools in a request."""
        return [str(tool.get("name") or tool["function"]["name"]) for tool in self.bodies[place].get("tools", ())]


def messages_of(body: dict[str, Any]) -> list[Any]:
    """Return the conversation in a body."""
    items: list[Any] = body.get("messages") or body["input"]
    return items


def check_prefixes(sent: Sent) -> None:
    """Check that each request begins with the messages of the one before, unless a turn was archived between them."""
    kept = 0
    for before, after in pairwise(sent.bodies):
        if str(before).count(RECORD) == str(after).count(RECORD):
            earlier, later = messages_of(before), messages_of(after)
            assert later[: len(earlier)] == earlier
            kept += 1
    assert kept > 3


def check_apart(sent: Sent, names: tuple[str, str]) -> None:
    """Check that no request contains words of two conversations, and that each of `names` is in one."""
    for request in sent.requests:
        assert sum(name in request for name in names) <= 1
    assert all(any(name in request for request in sent.requests) for name in names)


def damage(folder: Path) -> None:
    """Replace the middle of each file below `folder`."""
    files = [path for path in folder.rglob("*.jsonl") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 3] + b"\0garbage\n" + data[len(data) // 2 :])


@contextmanager
def full_disk() -> Iterator[None]:
    """Let each write to a log fail."""

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AppendLog, "_write", staticmethod(write))
        yield


def check_guide(framework: str, folder: Path, model: Callable[[Request], Answer] = reads_files, **env: str) -> None:
    """Run the programs of docs/guides/integrations.md for a framework, and compare their output with their comments."""
    page = (ROOT / "docs" / "guides" / "integrations.md").read_text()
    programs = [block for block in blocks(page) if block.language == f"python {framework}"]
    assert programs
    for block in programs:
        place = folder / str(block.line)
        place.mkdir()
        with Apart(model) as apart:
            env = {"HOME": str(place), "ORCH_HOME": str(place / "home"), "OPENAI_AGENTS_DISABLE_TRACING": "1"} | env
            done = subprocess.run(
                [sys.executable, "-P", "-c", block.text],
                cwd=place,
                env=os.environ | apart.env | env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        assert matches(expected(block.text), done.stdout), done.stdout
        assert apart.server.refused == []
        assert apart.server.requests


def check_names(heading: str, *modules: ModuleType) -> None:
    """Check that `modules` define what the first column of a table of docs/start/coming_from.md names.

    A name can have an attribute, as `Runner.run`, and an argument, as `Agent(tools=)`.
    """
    page = (ROOT / "docs" / "start" / "coming_from.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(names) > 10
    assert [name for name in names if not _defined(name, modules)] == []


def _defined(name: str, modules: tuple[ModuleType, ...]) -> bool:
    path, _, argument = name.rstrip("=)").partition("(")
    first, *attributes = path.split(".")
    found = next((getattr(module, first) for module in modules if hasattr(module, first)), None)
    for attribute in attributes:
        found = getattr(found, attribute, None)
    return found is not None and (not argument or argument in inspect.signature(found).parameters)
