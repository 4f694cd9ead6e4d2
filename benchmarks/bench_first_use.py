"""The three uses of orch in the README beside other agent frameworks: commands, lines of code, seconds and CPU seconds.

The programs are in `first_use/`. All talk to the same model server on the loopback interface, which answers after 50
ms, and run in the same rounds. The frameworks are in the venvs of their tests.

- Past sessions: import a recorded session, search it and compute its cost. No framework has this.
- Own loop: a conversation of 30 questions about 30 files, in which the model can still read everything. orch archives
  below the SDK; the frameworks send the whole conversation.
- Fan-out: 30 typed answers, six at a time. Each program is also killed one second after the sixth answer, and started
  again. It continues if its framework, or a package that the framework's documentation names, can do so.

Lines are those that are neither empty nor comments. Commands include the installation of the packages. CPU seconds are
those of all processes of a program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any, NamedTuple

import harness
from harness import Args, Row
from venvs import ROOT, MissingPeerError

sys.path.append(str(ROOT / "tests"))
from frameworks.run import VENVS, venv

ITEMS, WORKERS, FILES = 30, 6, 30
SECONDS = 60
SETTLE_SECONDS = 1.0
"""The time between the sixth answer and the kill, in which a program can save the answers."""
PROGRAMS = Path(__file__).with_name("first_use")
ORCH = str(Path(sys.executable).with_name("orch"))
SESSION = ROOT / "examples" / "bug_hunt" / "session.jsonl"
PAST = (("import", SESSION), ("archive", "search", "why was no flood alert sent"), ("replay", SESSION))


class Peer(NamedTuple):
    """A framework: its name, the name of its programs, and the name of the venv of its tests."""

    name: str
    program: str
    venv: str


FRAMEWORKS = (
    Peer("openai-agents", "openai_agents", "openai_agents"),
    Peer("pydantic-ai", "pydantic_ai", "pydantic_ai"),
    Peer("pydantic-ai with DBOS", "pydantic_ai_dbos", "pydantic_ai"),
    Peer("LangGraph", "langgraph", "langchain"),
)
LINES = {"own_loop": ("<= 2", "<= 1"), "fan_out": ("<= 0.6", "<= 0.5")}
FIGURES = {
    "own_loop": (
        ("wall", "time (s", "<= 1.5", "<= 1"),
        ("cpu", "CPU (s", "<= 1.5", "<= 1"),
        ("bytes", "sent to the model (MB", "<= 0.1", "<= 0.06"),
    ),
    "fan_out": (("wall", "time (s", "<= 2", "<= 1"), ("cpu", "CPU (s", "<= 2", "<= 1")),
}
"""The key, text and bounds of the measured figures."""
COMMANDS_OF_A_PROGRAM = 2
"""Install the packages, and start the program."""


def lines(program: Path) -> int:
    """Return the number of lines of code."""
    return sum(not line.strip().startswith("#") for line in program.read_text().splitlines() if line.strip())


class World:
    """A model server, and folders in which programs run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = harness.Peer(sys.executable, "review_model.py")
        self._url = self.ask()["url"]

    def ask(self, **question: Any) -> dict[str, Any]:
        """Return the state of the model server."""
        state: dict[str, Any] = self._server.ask(**question)
        return state

    def close(self) -> None:
        """End the model server."""
        self._server.close()

    def fresh(self) -> dict[str, Any]:
        """Make an empty folder with files to read. Return it and the environment of a program, for subprocess."""
        place = self._folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for day in range(FILES):
            (place / f"day{day}.log").write_text(f"day{day}: pressure 4 bar\n" + f"day{day}: all quiet\n" * 600)
        given = {"HOME": str(place), "ORCH_HOME": str(place / "home"), "DBOS__LOG_LEVEL": "ERROR"}
        keys = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": self._url, "PATH": os.environ["PATH"]}
        return {"cwd": place, "env": given | keys}

    def timed(self, *commands: list[str], where: dict[str, Any] | None = None) -> dict[str, float]:
        """Run the commands in a fresh folder. Return their seconds and their CPU seconds."""
        self.ask(reset=True)
        helper = [sys.executable, str(Path(__file__).with_name("timed_command.py"))]
        done = subprocess.run(
            helper,
            input=json.dumps(commands),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            **(where or self.fresh()),
        )
        if done.returncode:
            raise RuntimeError(f"{commands} failed: {done.stderr[-2000:]}")
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def killed(self, command: list[str]) -> tuple[int, Counter[str]]:
        """Kill a fan-out after six answers and run it again. Return the model calls, and the answers of each item."""
        where = self.fresh()
        self.ask(reset=True, hold=WORKERS)
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **where)
        try:
            self._until(lambda state: (len(state["sent"]), len(state["answered"])) == (2 * WORKERS, WORKERS))
            sleep(SETTLE_SECONDS)
        finally:
            first.kill()
            first.wait()
        self._until(lambda state: state["open"] == 0)
        self.ask()
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, **where)
        state = self.ask()
        return len(state["sent"]), Counter(state["answered"])

    def _until(self, reached: Callable[[dict[str, Any]], bool]) -> None:
        deadline = monotonic() + SECONDS
        while not reached(state := self.ask(hold=WORKERS)):
            if monotonic() > deadline:
                raise RuntimeError(f"the fan-out did not send {2 * WORKERS} requests: {state}")
            sleep(0.05)


def interpreter(peer: Peer, *, create: bool) -> str:
    """Return the interpreter of a framework.

    Raises MissingPeerError if its venv does not exist and `create` is False, or if it cannot be made.
    """
    if not create and not (VENVS / peer.venv / "made").exists():
        raise MissingPeerError("not installed: run python tests/frameworks/run.py")
    try:
        return str(venv(peer.venv))
    except (subprocess.SubprocessError, OSError) as error:
        raise MissingPeerError(f"could not be installed: {error}") from error


async def measure(args: Args) -> list[Row]:
    """Measure the three uses."""
    pythons, missing = dict[Peer, str](), list[Row]()
    for each in FRAMEWORKS:
        try:
            pythons[each] = interpreter(each, create=not args.quick)
        except MissingPeerError as error:
            missing.append(harness.skipped(f"first use (peer: {each.name})", str(error), must="<= 1", aim="<= 1"))
    with harness.scratch() as folder:
        world = World(folder)
        try:
            return [
                *await past(args, world),
                *await program_rows(args, world, "own_loop", f"own loop of {FILES} questions", pythons),
                *await program_rows(args, world, "fan_out", f"fan-out of {ITEMS}", pythons),
                *killed_rows(world, pythons),
                *missing,
            ]
        finally:
            world.close()


async def past(args: Args, world: World) -> list[Row]:
    """Measure the search in past sessions."""
    commands = [[ORCH, *map(str, command)] for command in PAST]
    runs: list[dict[str, float]] = []
    await harness.interleave(args.rounds, ours=lambda: _noted(runs, world.timed(*commands)))
    figure = "a past session searched and priced"
    wall, cpu = (median(each[key] for each in runs[1:]) for key in ("wall", "cpu"))
    return [
        harness.counted(f"{figure}: commands (peers: none)", 1 + len(PAST), must="<= 4"),
        harness.counted(f"{figure}: lines of code (peers: none)", 0, must="== 0"),
        harness.counted(f"{figure}: time (s; peers: none)", wall, must="<= 10", aim="<= 2"),
        harness.counted(f"{figure}: CPU (s; peers: none)", cpu, must="<= 5", aim="<= 2"),
    ]


async def program_rows(args: Args, world: World, kind: str, figure: str, pythons: dict[Peer, str]) -> list[Row]:
    """Measure the programs of orch and of the frameworks for one use. Programs that a framework lacks are left out."""
    commands = {"orch": [sys.executable, str(PROGRAMS / f"{kind}_orch.py")]}
    for each, python in pythons.items():
        if (path := _program(kind, each)).exists():
            commands[each.name] = [python, str(path)]
    runs = {name: list[dict[str, float]]() for name in commands}

    def side(name: str, command: list[str]) -> Callable[[], float]:
        def once() -> float:
            figures = world.timed(command)
            state = world.ask()
            if kind == "fan_out" and Counter(state["answered"]) != {str(item): 1 for item in range(ITEMS)}:
                raise RuntimeError(f"{command} did not ask about each item once: {state['answered']}")
            return _noted(runs[name], figures | {"bytes": state["size"] / 1e6})

        return once

    await harness.interleave(args.rounds, **{name: side(name, command) for name, command in commands.items()})
    rows = [
        harness.compared(
            f"{figure}: commands (peer: each)",
            [COMMANDS_OF_A_PROGRAM],
            [COMMANDS_OF_A_PROGRAM],
            must="<= 1",
            aim="<= 1",
        )
    ]
    sizes = {name: lines(Path(command[1])) for name, command in commands.items()}
    peers = [name for name in commands if name != "orch"]
    for name in peers:
        text = f"{figure}: lines of code (peer: {name})"
        rows.append(harness.compared(text, [sizes["orch"]], [sizes[name]], must=LINES[kind][0], aim=LINES[kind][1]))
    for key, text, must, aim in FIGURES[kind]:
        values = {name: [each[key] for each in found[1:]] for name, found in runs.items()}
        for name in peers:
            row = harness.compared(f"{figure}: {text}; peer: {name})", values["orch"], values[name], must=must, aim=aim)
            rows.append(row)
    return rows


def killed_rows(world: World, pythons: dict[Peer, str]) -> list[Row]:
    """Kill the fan-outs, run them again, and count the model calls and the answers."""
    calls, answers = world.killed([sys.executable, str(PROGRAMS / "fan_out_orch.py")])
    figure = f"fan-out killed at {WORKERS} of {ITEMS} and run again"
    rows = [
        harness.counted(f"{figure}: items answered", len(answers), must=f"== {ITEMS}"),
        harness.counted(f"{figure}: items answered twice", _twice(answers), must="== 0"),
        harness.counted(f"{figure}: requests sent again", calls - ITEMS, must=f"<= {WORKERS}"),
    ]
    for each, python in pythons.items():
        theirs, answered = world.killed([python, str(_program("fan_out", each))])
        name = f"{each.name}, {_twice(answered)} items answered twice"
        rows.append(
            harness.compared(f"{figure}: model calls (peer: {name})", [calls], [theirs], must="<= 1", aim="<= 1")
        )
    return rows


def _program(kind: str, peer: Peer) -> Path:
    return PROGRAMS / f"{kind}_{peer.program}.py"


def _noted(runs: list[dict[str, float]], figures: dict[str, float]) -> float:
    runs.append(figures)
    return figures["cpu"]


def _twice(answers: Counter[str]) -> int:
    return sum(count > 1 for count in answers.values())


if __name__ == "__main__":
    harness.main(measure, affinity="all", rounds=5, quick_rounds=1)
