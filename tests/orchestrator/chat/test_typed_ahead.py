"""Keys that are pressed before the prompt is shown."""

from __future__ import annotations

import os
import pty
import termios

from orch.chat.screen import buffer_early_keys


def test_keys_typed_before_the_prompt_are_kept() -> None:
    """Enter is read as a carriage return, no key is echoed, and the mode of the terminal is restored."""
    controller, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    with buffer_early_keys(terminal):
        os.write(controller, b"go\r")
        assert os.read(terminal, 9) == b"go\r"
    assert termios.tcgetattr(terminal) == before
    os.set_blocking(controller, False)
    try:
        echoed = os.read(controller, 9)
    except BlockingIOError:
        echoed = b""
    assert echoed == b""
    for each in (controller, terminal):
        os.close(each)


def test_typeahead_on_a_pipe_is_untouched() -> None:
    """A pipe has no terminal modes, so the block has no effect."""
    ends = os.pipe()
    with buffer_early_keys(ends[0]):
        pass
    for each in ends:
        os.close(each)
