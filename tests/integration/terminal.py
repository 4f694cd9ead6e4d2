"""Terminals for tests: a pseudo-terminal, and a pane of tmux."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

from integration.command_shell import MAIN, SECONDS, Shell

__all__ = ["Pane", "Pty", "Terminal", "orch", "until"]

CLAIM = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""A program that makes standard input the controlling terminal of the session, then executes the given program."""
COLUMNS = 200
PAUSE = 0.05


class Terminal(Protocol):
    """A terminal in which a command runs."""

    def shown(self) -> str:
        """Return the content of the screen so far."""

    def type(self, text: str) -> None:
        """Type `text`."""

    def end(self) -> int:
        """Wait until the command ends, and return its exit code."""

    def close(self) -> None:
        """End the command if it is running."""


class Pty:
    """Runs `orch`, or a bash `script`, in a pseudo-terminal that is its controlling terminal."""

    def __init__(self, shell: Shell, *argv: str, script: str | None = None, **env: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-P", "-c", MAIN, *argv] if script is None else ["/bin/bash", "-c", script]
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLAIM, *command],
            cwd=shell.folder,
            env=shell.env | env | {"COLUMNS": str(COLUMNS)},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def shown(self) -> str:
        """Return the output so far, without lines that were overwritten."""
        found = bytes(self._said).decode(errors="replace").replace("\r\n", "\n")
        return re.sub(r"[^\n]*\r\x1b\[K", "", found)

    def type(self, text: str) -> None:
        """Type `text`."""
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Wait until the command ends, and return its exit code."""
        code = self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    def close(self) -> None:
        """End the command if it is running."""
        self._process.kill()
        self.end()
        os.close(self._master)

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 4096):
                self._said += data
        except OSError:
            pass  # the last process at the other end has closed the terminal


class Pane:
    """Runs `orch` in a pane of a separate tmux server, which has its socket at `socket`."""

    def __init__(self, socket: Path, shell: Shell, *argv: str, **env: str) -> None:
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        command = shlex.join([sys.executable, "-P", "-c", MAIN, *argv])
        self._code = socket.with_suffix(".code")
        size = ["-x", str(COLUMNS), "-y", "50"]
        whole = f"{command}; echo $? > {shlex.quote(str(self._code))}; tmux -S {shlex.quote(str(socket))} wait -S over"
        subprocess.run(
            [*self._tmux, "new-session", "-d", *size, f"{whole}; exec cat"],
            cwd=shell.folder,
            env=shell.env | env | {"TERM": "screen"},
            check=True,
            timeout=SECONDS,
        )

    def shown(self) -> str:
        """Return the content of the pane and of its history. Wrapped lines are joined."""
        return self._run("capture-pane", "-p", "-J", "-S", "-")

    def type(self, text: str) -> None:
        """Type `text`."""
        for line in text.splitlines(keepends=True):
            self._run("send-keys", "-l", line.rstrip("\n"))
            if line.endswith("\n"):
                self._run("send-keys", "Enter")

    def press(self, *keys: str) -> None:
        """Press keys, which have the names of tmux."""
        self._run("send-keys", *keys)

    def paste(self, file: Path) -> None:
        """Paste the text of a file as a bracketed paste."""
        self._run("load-buffer", str(file))
        self._run("paste-buffer", "-p")

    def resize(self, columns: int, rows: int) -> None:
        """Resize the pane."""
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def end(self) -> int:
        """Wait until the command ends, and return its exit code."""
        self._run("wait", "over")
        return int(self._code.read_text())

    def close(self) -> None:
        """End the tmux server and all processes in it."""
        self._run("kill-server")

    def _run(self, *argv: str) -> str:
        done = subprocess.run([*self._tmux, *argv], capture_output=True, text=True, timeout=SECONDS, check=True)
        return done.stdout


def orch(*argv: str) -> str:
    """Return a command line of `orch` for a script."""
    return shlex.join([sys.executable, "-P", "-c", MAIN, *argv])


def until(terminal: Terminal, pattern: str) -> None:
    """Return when the output of the terminal matches `pattern`."""
    deadline = time.monotonic() + SECONDS
    while not re.search(pattern, terminal.shown()):
        assert time.monotonic() < deadline, f"no {pattern!r} in:\n{terminal.shown()}"
        time.sleep(PAUSE)
