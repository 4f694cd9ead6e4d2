"""`%orch` and `%%orch`: a line or a cell goes to the notebook's agent, whose turn is shown below it."""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display
from msgspec import Struct

from orch_protocol.core.errors import ConfigError, OrchError
from orch_protocol.policy.approval import Consent, Question
from orch_worker.backends.offline.scripted import ScriptedBackend

from ..commands.parse import read
from ..render import terminal
from .session import Choice, NotebookSession
from .view import Told, TurnView

__all__ = ["MagicLine", "OrchMagics", "parse", "rewrite_questions"]


# --- What is said behind `%orch` ---

FLAGS: Final = ("new", "close")
VALUES: Final = ("model", "preset", "tools", "max-cost", "script", "approve")
MODES: Final = ("ask", "auto", "deny")


class MagicLine(Struct, frozen=True):
    """A line. `choice` is what a new agent is to be, None when the one that is there is meant; `approve` how what needs
    approval is answered from now on, None: as before."""

    prompt: str = ""
    choice: Choice | None = None
    approve: Literal["ask", "auto", "deny"] | None = None
    close: bool = False


def parse(text: str) -> MagicLine:
    """Read a line. Raises ConfigError: an option that there is not, a value that is none."""
    said: dict[str, str] = {}
    rest = text.strip()
    while rest.startswith("--"):
        word, _, rest = rest.partition(" ")
        name, equals, value = word.removeprefix("--").partition("=")
        if name not in (*FLAGS, *VALUES):
            known = ", ".join(f"--{each}" for each in (*FLAGS, *VALUES))
            raise ConfigError(f"%orch has no option {word}; it has {known}")
        if name in VALUES and not equals:
            value, _, rest = rest.lstrip().partition(" ")
        if name in VALUES and not value:
            raise ConfigError(f"%orch {word} needs a value behind it")
        said[name] = value
        rest = rest.lstrip()
    approve = said.pop("approve", None)
    if approve is not None and approve not in MODES:
        raise ConfigError(f"%orch --approve takes {', '.join(MODES)}, not {approve!r}")
    close = said.pop("close", None) is not None
    return MagicLine(rest, _choice(said) if said else None, approve, close)  # type: ignore[arg-type]


def _choice(said: dict[str, str]) -> Choice:
    return Choice(
        model=said.get("model"),
        preset=said.get("preset"),
        tools=tuple(said["tools"].split(",")) if "tools" in said else None,
        max_cost=_dollars(said["max-cost"]) if "max-cost" in said else None,
        backend=_script(Path(said["script"])) if "script" in said else None,
    )


def _dollars(text: str) -> float:
    try:
        number = float(text.removeprefix("$"))
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"%orch --max-cost takes an amount of US dollars above 0, not {text!r}")
    return number


def _script(file: Path) -> ScriptedBackend:
    try:
        return ScriptedBackend(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"script {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"script {file}: {error}") from error


def rewrite_questions(lines: list[str]) -> list[str]:
    """Return the lines of a cell with those that put a question to `%orch` as calls of it.

    IPython takes a line that ends with a question mark for a request for help, on its last word.
    """
    if lines and lines[0].startswith("%%"):
        return lines
    return [_call(line) if line.startswith("%orch ") and line.rstrip().endswith("?") else line for line in lines]


def _call(line: str) -> str:
    asked = line.rstrip().removeprefix("%orch ")
    return f"get_ipython().run_line_magic('orch', {asked!r})\n"


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

    def _obey(self, line: MagicLine, cell: str) -> None:
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
            print(terminal.agent_tree(rows) if rows else "no agents yet: %orch PROMPT begins")
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
            print(terminal.safe(done.text), file=sys.stderr if done.is_error else sys.stdout)
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
    said = [": ".join(filter(None, (type(error).__name__, terminal.safe(str(error)))))]
    error._render_traceback_ = lambda: said  # type: ignore[union-attr]
    return error
