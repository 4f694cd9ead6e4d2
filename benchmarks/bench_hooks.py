"""The cost of hooks in a turn.

The benches measure a turn without hooks, a turn with a hundred observers, and a hook of the program compared with a
hook in the agent.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any

import harness
from harness import Args, Row

from orch_protocol.services.service import AnyService

TURNS = 2000
OBSERVERS = 100
HOOKED = ("hooks", "_hooks")
"""Names in expressions of the loop's modules that refer to hooks."""

WITHOUT_HOOKS = (
    "a turn without active hooks (us; peer: the same turn without the code for hooks)",
    "<= 1.02",
    "<= 1.01",
)
CROWD = (f"a query with {OBSERVERS} observers of its end (us; peer: the same without hooks)", "<= 1.3", "<= 1.15")
ALL = (f"a query with {OBSERVERS} observers of everything in it (us; peer: the same without hooks)", ">= 0", "<= 2")
AFAR = ("a query with a hook of the program that changes its reply (us; peer: the same hook in the agent)", ">= 0", "")

HOOKS = """
from orch import hook

def observer(number, stage):
    @hook(stage, name=f"{number}", kind="observe")
    def observe(event, ctx):
        pass
    return observe

def louder(event, ctx):
    return event.patch(text=event.text.upper())
"""


class Silence:
    """A root that does not answer."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    async def call_root(self, service: AnyService, params: Any, seconds: float | None = None) -> None:
        """Do nothing."""


def without_hooks(source: str) -> ast.Module:
    """Return the module `source` without the code that runs only if there are hooks, such as the body of `if hooks is
    not None`.
    """

    class Compiled(ast.NodeTransformer):
        """Removes the branches that run only if there are hooks."""

        def visit_If(self, node: ast.If) -> Any:
            """Keep only the branch that runs without hooks."""
            self.generic_visit(node)
            wanted = there(node.test)
            return node if wanted is None else (node.orelse if wanted else node.body) or None

        def visit_IfExp(self, node: ast.IfExp) -> Any:
            """Keep only the value that is used without hooks."""
            self.generic_visit(node)
            wanted = there(node.test)
            return node if wanted is None else node.orelse if wanted else node.body

    return ast.fix_missing_locations(Compiled().visit(ast.parse(source)))


def there(test: ast.expr) -> bool | None:
    """Return True if `test` asks whether there are hooks, and False if it asks whether there are none.

    Return None if `test` is about other values.
    """
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        return None
    left = test.left
    name = left.id if isinstance(left, ast.Name) else left.attr if isinstance(left, ast.Attribute) else ""
    return isinstance(test.ops[0], ast.IsNot) if name in HOOKED else None


def compiled(name: str) -> ModuleType:
    """Return the module `name` without the code for hooks. The imported module does not change."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    module = importlib.util.module_from_spec(spec)
    tree = without_hooks(Path(spec.origin).read_text())
    exec(compile(tree, spec.origin, "exec"), vars(module))  # the same source without the code for hooks
    return module


async def turns(module: ModuleType, folder: Path, times: int) -> float:
    """Return the median time in microseconds of `times` turns of the runtime in `module`, without processes."""
    from orch_protocol.agent.spec import AgentSpec, BackendSpec
    from orch_protocol.wire.worker_messages import Query

    backend = BackendSpec("scripted", options={"items": [{"loop": ["ok"]}]})
    await asyncio.to_thread(folder.mkdir)
    runtime = module.Runtime(AgentSpec("a1", 1, "a", "t", backend, str(folder), str(folder)), {}, Silence())
    taken = []
    for number in range(times):
        begin = perf_counter()
        await runtime.query(f"q{number}", Query("go"), runtime.begin_turn())
        taken.append(perf_counter() - begin)
        await asyncio.sleep(0)
    runtime.close()
    return 1e6 * median(taken)


async def nobody(args: Args, folder: Path, times: int) -> Row:
    """Measure the loop in this process, with and without the code for hooks."""
    import orch_worker.agent.runtime as whole

    bare = compiled("orch_worker.agent.runtime")
    vars(bare)["Turn"] = compiled("orch_worker.agent.turn").Turn
    number = iter(range(1 << 30))
    took = await harness.interleave(
        args.rounds,
        ours=lambda: turns(whole, folder / f"whole{next(number)}", times),
        peer=lambda: turns(bare, folder / f"bare{next(number)}", times),
    )
    return harness.compared(WITHOUT_HOOKS[0], took["ours"], took["peer"], must=WITHOUT_HOOKS[1], aim=WITHOUT_HOOKS[2])


async def queries(args: Args, folder: Path, times: int) -> list[Row]:
    """Query agents in real processes in alternating order. Each agent has the hooks of its own root."""
    from orch import AsyncOrchestrator, Config, HooksConfig, ScriptedBackend

    (folder / "here.py").write_text(HOOKS + '\nfrom orch import hook\nlouder = hook("before_output")(louder)\n')
    for name, stage in (("end", "turn_end"), ("all", "*")):
        made = f"globals().update((f'o{{n}}', observer(n, {stage!r})) for n in range({OBSERVERS}))"
        (folder / f"{name}.py").write_text(f"{HOOKS}\n{made}\n")

    def asked(agent: Any) -> Callable[[], Awaitable[float]]:
        async def ask() -> float:
            taken = []
            for _ in range(times):
                begin = perf_counter()
                await agent.query("go")
                taken.append(perf_counter() - begin)
            return 1e6 * median(taken)

        return ask

    sides: dict[str, harness.Side] = {}
    roots = []
    try:
        for name in ("none", "end", "all", "here", "afar"):
            load = () if name in ("none", "afar") else (str(folder / f"{name}.py"),)
            root = AsyncOrchestrator(config=Config(hooks=HooksConfig(load)), home=folder / name)
            roots.append(await root.__aenter__())
            if name == "afar":
                root.register_hook(
                    lambda event, _ctx: event.patch(text=event.text.upper()), "before_output", name="far"
                )
            agent = await root.spawn("nothing", backend=ScriptedBackend([{"loop": ["ok"]}]))
            sides[name] = asked(agent)
        took = await harness.interleave(args.rounds, **sides)
    finally:
        for root in roots:
            await root.__aexit__(None, None, None)
    rows = ((CROWD, "end", "none"), (ALL, "all", "none"), (AFAR, "afar", "here"))
    return [
        harness.compared(figure, took[ours], took[peer], must=must, aim=aim) for (figure, must, aim), ours, peer in rows
    ]


async def measure(args: Args) -> list[Row]:
    """Measure the turns without processes, then the turns with processes."""
    times = max(1, (TURNS // 10 if args.quick else TURNS) // args.rounds)
    with harness.scratch() as folder:
        return [await nobody(args, folder, times), *await queries(args, folder, times)]


if __name__ == "__main__":
    harness.main(measure)
