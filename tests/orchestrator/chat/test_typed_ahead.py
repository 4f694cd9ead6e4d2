"""Keys before there is a prompt."""

from __future__ import annotations

import os
import pty
import termios

from orch.chat.screen import buffer_early_keys


def test_keys_wait_unseen_and_enter_stays_enter() -> None:
    """What was typed is there to be read as it was pressed, and the terminal is then what it was."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with buffer_early_keys(theirs):
        os.write(ours, b"go\r")
        assert os.read(theirs, 9) == b"go\r"
    assert termios.tcgetattr(theirs) == before
    os.set_blocking(ours, False)
    try:
        echoed = os.read(ours, 9)
    except BlockingIOError:
        echoed = b""
    assert echoed == b""
    for each in (ours, theirs):
        os.close(each)


def test_what_is_no_terminal_stays_as_it_is() -> None:
    """A pipe has no modes."""
    ends = os.pipe()
    with buffer_early_keys(ends[0]):
        pass
    for each in ends:
        os.close(each)
