"""The magics `%orch` and `%%orch` send a line or a cell to the notebook's agent and show the turn below the cell."""

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
from orch_protocol.core.text import decode_text
from orch_protocol.policy.approval import Consent, Question
from orch_worker.backends.offline.scripted import ScriptedBackend

from ..commands.parse import read
from ..render import terminal
from ..render.columns import DEFAULT_WIDTH
from .session import AgentSettings, NotebookSession
from .view import TerminalView, TurnView

__all__ = ["MagicLine", "OrchMagics", "parse", "rewrite_questions"]


# --- Arguments of `%orch` ---

FLAGS: Final = ("new", "close")
VALUES: Final = ("model", "preset", "tools", "max-cost", "script", "approve")
MODES: Final = ("ask", "auto", "deny")


class MagicLine(Struct, frozen=True):
    """A parsed line. `settings` contains the settings of a new agent; None selects the existing agent.

    `approve` is the approval mode for this and later turns. None leaves the mode unchanged.
    """

    prompt: str = ""
    settings: AgentSettings | None = None
    approve: Literal["ask", "auto", "deny"] | None = None
    close: bool = False


def parse(text: str) -> MagicLine:
    """Parse a line. Raises ConfigError for an unknown option or an invalid value."""
    options: dict[str, str] = {}
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
            raise ConfigError(f"%orch {word} needs a value after it")
        options[name] = value
        rest = rest.lstrip()
    approve = options.pop("approve", None)
    if approve is not None and approve not in MODES:
        raise ConfigError(f"%orch --approve takes {', '.join(MODES)}, not {approve!r}")
    close = options.pop("close", None) is not None
    return MagicLine(rest, _agent_settings(options) if options else None, approve, close)  # type: ignore[arg-type]


def _agent_settings(options: dict[str, str]) -> AgentSettings:
    return AgentSettings(
        model=options.get("model"),
        preset=options.get("preset"),
        tools=tuple(options["tools"].split(",")) if "tools" in options else None,
        max_cost=_dollars(options["max-cost"]) if "max-cost" in options else None,
        backend=_script(Path(options["script"])) if "script" in options else None,
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
        return ScriptedBackend(json.loads(decode_text(file.read_bytes())))
    except OSError as error:
        raise ConfigError(f"script {file} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"script {file}: {error}") from error


def rewrite_questions(lines: list[str]) -> list[str]:
    """Rewrite the calls of `%orch` that end in a question mark, and return the lines of the cell.

    Otherwise IPython would treat such a line as a request for help on its last word.
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
        self._can_replace_output = hasattr(shell, "kernel")
        """Whether the front end can replace earlier output. A terminal cannot."""
        atexit.register(self.close)

    @line_cell_magic
    def orch(self, line: str, cell: str | None = None) -> None:
        """Send a prompt to the notebook's agent.

        The agent's code runs in the notebook's namespace. The reply is `_orch`.

            %orch What is in df?

            %%orch --new --model local
            Plot the sales by month.

        Options come first. --new starts another conversation. The settings of a new agent also start another
        conversation: --model, --preset, --tools A,B, --max-cost USD and --script FILE. --approve ask, auto or deny sets
        how approval questions are answered. Without a prompt, the agents are listed. --close ends all agents. A prompt
        that begins with a slash is a command of the session, such as /context; /help lists the commands. !COMMAND runs
        a shell command in the agent's sandbox.
        """
        try:
            self._execute_line(parse(line), cell or "")
        except (OrchError, KeyboardInterrupt) as error:
            raise _without_traceback(error) from None

    def close(self) -> None:
        """End all agents. Their conversations are kept."""
        self._session.close()

    def _execute_line(self, line: MagicLine, cell: str) -> None:
        self._approve = line.approve or self._approve
        if line.close:
            self.close()
            return
        if line.settings is not None:
            self._session.begin(line.settings)
        prompt = "\n".join(filter(None, (line.prompt, cell.strip())))
        lines = read(prompt)
        if lines.kind == "command":
            self._execute(prompt)
        elif prompt:
            self._run(lines.text)
        elif line.settings is None and line.approve is None:
            rows = msgspec.json.decode(msgspec.json.encode(self._session.orchestrator.agents()))
            hint = "no agents yet: %orch PROMPT starts an agent"
            print(terminal.agent_tree(rows, width=DEFAULT_WIDTH) if rows else hint)
        if self._session.note:
            print(f"orch: {self._session.note}", file=sys.stderr)
            self._session.note = ""

    def _run(self, prompt: str) -> None:
        if self._can_replace_output:
            view = TurnView()
            self._names[REPLY] = self._session.run(prompt, view, _CellOutput(view))
        else:
            self._names[REPLY] = self._session.run(prompt, TerminalView(), lambda: None)

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
            print(f"{'allowed' if self._approve == 'auto' else 'denied'}:\n{lines}", file=sys.stderr)
            return Consent(self._approve == "auto")
        print(lines, flush=True)
        try:
            choice = input(CHOICES).strip().lower()
        except (EOFError, RuntimeError):  # no user can answer, for example under nbconvert
            print("denied because no user can be asked here: use %orch --approve auto to allow calls", file=sys.stderr)
            return Consent(False)
        return Consent(choice in ("y", "s"), scope="session" if choice == "s" else "once")


class _CellOutput:
    """One output of a cell. The output is replaced while the turn runs."""

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
    """Return an identifier of this notebook.

    The identifier is the path of the notebook's file. If the front end does not provide the path, it is the folder.
    """
    return str(names.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME") or os.getcwd())


def _without_traceback(error: OrchError | KeyboardInterrupt) -> OrchError | KeyboardInterrupt:
    """Change `error` so that the notebook shows only its message, without a traceback."""
    lines = [": ".join(filter(None, (type(error).__name__, terminal.safe(str(error)))))]
    error._render_traceback_ = lambda: lines  # type: ignore[union-attr]
    return error
