"""Completion in real shells, at a terminal."""

from __future__ import annotations

import shlex
import shutil
import sys
from contextlib import closing

import pytest

from integration.command_shell import MAIN, Shell
from integration.terminal import Pty, until

SHELLS = {
    "bash": ("bash --norc -i", 'eval "$(orch completion bash)"'),
    "zsh": ("zsh -f -i", 'autoload -U compinit; compinit -u; eval "$(orch completion zsh)"'),
    "fish": ("fish --no-config -i", "orch completion fish | source"),
}


@pytest.mark.parametrize("name", SHELLS)
def test_tab_completes_a_command(shell: Shell, name: str) -> None:
    """The word that a Tab completes is run."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    program = shell.folder / "bin" / "orch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", "-c", MAIN])} "$@"\n')
    program.chmod(0o755)
    start, load = SHELLS[name]
    path = f"{program.parent}:{shell.env['PATH']}"
    with closing(Pty(shell, script=f"exec {start}", PATH=path, TERM="xterm", PS1="> ")) as terminal:
        terminal.type(f"{load}; echo load''ed\n")
        until(terminal, "loaded")
        terminal.type("orch vers\t")
        until(terminal, "orch version")
        terminal.type("\n")
        until(terminal, r"orch \d+\.\d+")
        terminal.type("exit\n")
        assert terminal.end() == 0
