"""`%orch` and `%%orch`: a line or a cell goes to the notebook's agent, whose turn is shown below it."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Final

import msgspec
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from orch_protocol.approval import Consent, Question
from orch_protocol.errors import OrchError

from ..cli import render
from ..commands.reading import read
from .line import Line, parse
from .session import NotebookSession
from .told import Told
from .view import TurnView

__all__ = ["OrchMagics"]

REPLY: Final = "_orch"
CHOICES: Final = "Allow it? [y] once, [s] for this session, anything else: no > "


@magics_class
class OrchMagics(Magics):
    """The magics of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._names = shell.user_ns
        self._session = NotebookSession(shell.user_ns, _notebook(shell.user_ns), self._ask)
        self._approve = "ask"
        self._draws = hasattr(shell, "kernel")
        """Whether what a cell shows can be replaced: at a terminal it cannot."""
        atexit.register(self.close)

    @line_cell_magic
    def orch(self, line: str, cell: str | None = None) -> None:
        """Ask the notebook's agent. Its code runs in the notebook's names; its reply is `_orch`.

            %orch What is in df?
            %%orch --new --model local
            Plot the sales by month.

        Options come first. --new begins another conversation, as do --model, --preset, --tools A,B, --max-cost USD and
        --script FILE, which say what the agent is to be. --approve ask, auto or deny says how what needs approval is
        answered. Without a prompt the agents are listed; --close ends them all. What begins with a slash is a command
        of the session, such as /context; /help lists them. !COMMAND is for the shell, in the agent's sandbox.
        """
        try:
            self._obey(parse(line), cell or "")
        except (OrchError, KeyboardInterrupt) as error:
            raise _told(error) from None

    def close(self) -> None:
        """End what was started; conversations stay."""
        self._session.close()

    def _obey(self, line: Line, cell: str) -> None:
        self._approve = line.approve or self._approve
        if line.close:
            self.close()
            return
        if line.choice is not None:
            self._session.begin(line.choice)
        prompt = "\n".join(filter(None, (line.prompt, cell.strip())))
        said = read(prompt)
        if said.kind == "command":
            self._execute(prompt)
        elif prompt:
            self._run(said.text)
        elif line.choice is None and line.approve is None:
            rows = msgspec.json.decode(msgspec.json.encode(self._session.orchestrator.agents()))
            print(render.tree(rows) if rows else "no agents yet: %orch PROMPT begins")
        if self._session.note:
            print(f"orch: {self._session.note}", file=sys.stderr)
            self._session.note = ""

    def _run(self, prompt: str) -> None:
        if self._draws:
            view = TurnView()
            self._names[REPLY] = self._session.run(prompt, view, _Shown(view))
        else:
            self._names[REPLY] = self._session.run(prompt, Told(), lambda: None)

    def _execute(self, command: str) -> None:
        done = self._session.agent.execute(command)
        if done.text:
            print(render.safe(done.text), file=sys.stderr if done.is_error else sys.stdout)
        if done.effect is None:
            return
        if done.effect.kind == "ask":
            self._run(done.effect.text)
        elif done.effect.kind == "quit":
            self.close()
        else:
            print(f"orch: {command.split()[0]} is for a console: a notebook cannot {done.effect.kind}", file=sys.stderr)

    def _ask(self, question: Question) -> Consent:
        lines = "\n".join(f"  {line}" for line in question.with_lines().lines)
        if self._approve != "ask":
            print(f"{'let through' if self._approve == 'auto' else 'denied'}:\n{lines}", file=sys.stderr)
            return Consent(self._approve == "auto")
        print(lines, flush=True)
        try:
            said = input(CHOICES).strip().lower()
        except (EOFError, RuntimeError):  # a notebook that a program runs
            print("nobody can be asked here, so it is denied: %orch --approve auto lets it through", file=sys.stderr)
            return Consent(False)
        return Consent(said in ("y", "s"), scope="session" if said == "s" else "once")


class _Shown:
    """One output of a cell, replaced as a turn goes on."""

    def __init__(self, view: TurnView) -> None:
        self._view = view
        self._handle: Any = None
        self._last: str | None = None

    def __call__(self) -> None:
        view = self._view
        text = view.text()
        if self._handle is None:
            self._handle = display(view, display_id=True)  # type: ignore[no-untyped-call]
        elif text != self._last:
            self._handle.update(view)
        self._last = text


def _notebook(names: dict[str, Any]) -> str:
    """Return what tells this notebook from others: its file where the front end says it, else the folder."""
    return str(names.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME") or os.getcwd())


def _told(error: OrchError | KeyboardInterrupt) -> OrchError | KeyboardInterrupt:
    """Let a notebook show the sentence that the error is, and not where in here it was raised."""
    said = [": ".join(filter(None, (type(error).__name__, render.safe(str(error)))))]
    error._render_traceback_ = lambda: said  # type: ignore[union-attr]
    return error
