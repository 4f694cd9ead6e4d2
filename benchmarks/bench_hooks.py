"""What hooks cost a turn: nobody listens, a hundred observers do, and a hook of the program against one beside it."""

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
"""What an expression names that is about hooks, in the modules of the loop."""

NOBODY = ("a turn while nobody listens (us; peer: the same with hooks compiled out)", "<= 1.02", "<= 1.01")
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
    """A root that hears nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    async def call_root(self, service: AnyService, params: Any, seconds: float | None = None) -> None:
        """Answer nothing."""


def without_hooks(source: str) -> ast.Module:
    """Return the module `source` without what is done if there are hooks: `if hooks is not None`, and the like."""

    class Compiled(ast.NodeTransformer):
        """Lets every test for hooks come out as if there were none."""

        def visit_If(self, node: ast.If) -> Any:
            """Leave what is done without hooks."""
            self.generic_visit(node)
            wanted = there(node.test)
            return node if wanted is None else (node.orelse if wanted else node.body) or None

        def visit_IfExp(self, node: ast.IfExp) -> Any:
            """Leave what is there without hooks."""
            self.generic_visit(node)
            wanted = there(node.test)
            return node if wanted is None else node.orelse if wanted else node.body

    return ast.fix_missing_locations(Compiled().visit(ast.parse(source)))


def there(test: ast.expr) -> bool | None:
    """Say whether `test` asks if there are hooks (True), or if there are none (False); None when it is about others."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        return None
    left = test.left
    name = left.id if isinstance(left, ast.Name) else left.attr if isinstance(left, ast.Attribute) else ""
    return isinstance(test.ops[0], ast.IsNot) if name in HOOKED else None


def compiled(name: str) -> ModuleType:
    """Return the module `name` as it would be without hooks; the one that is imported stays as it is."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    module = importlib.util.module_from_spec(spec)
    tree = without_hooks(Path(spec.origin).read_text())
    exec(compile(tree, spec.origin, "exec"), vars(module))  # the same source, with less of it
    return module


async def turns(module: ModuleType, folder: Path, times: int) -> float:
    """Return the median microseconds of `times` turns of the runtime of `module`, without processes."""
    from orch_protocol.agent.spec import AgentSpec, BackendSpec
    from orch_protocol.wire.worker_messages import Query

    backend = BackendSpec("scripted", options={"items": [{"loop": ["ok"]}]})
    await asyncio.to_thread(folder.mkdir)
    runtime = module.Runtime(AgentSpec("a1", 1, "a", "t", backend, str(folder), str(folder)), {}, Silence())
    taken = []
    for number in range(times):
        begin = perf_counter()
        await runtime.query(f"q{number}", Query("go"), runtime.begin())
        taken.append(perf_counter() - begin)
        await asyncio.sleep(0)
    runtime.close()
    return 1e6 * median(taken)


async def nobody(args: Args, folder: Path, times: int) -> Row:
    """Measure the loop in this process, with its hooks and with none compiled in."""
    import orch_worker.agent.runtime as whole

    bare = compiled("orch_worker.agent.runtime")
    vars(bare)["Turn"] = compiled("orch_worker.agent.turn").Turn
    number = iter(range(1 << 30))
    took = await harness.interleave(
        args.rounds,
        ours=lambda: turns(whole, folder / f"whole{next(number)}", times),
        peer=lambda: turns(bare, folder / f"bare{next(number)}", times),
    )
    return harness.compared(NOBODY[0], took["ours"], took["peer"], must=NOBODY[1], aim=NOBODY[2])


async def queries(args: Args, folder: Path, times: int) -> list[Row]:
    """Query agents of real processes, each with the hooks of its own root, in turn."""
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
    """Measure the turns without processes, then those with."""
    times = max(1, (TURNS // 10 if args.quick else TURNS) // args.rounds)
    with harness.scratch() as folder:
        return [await nobody(args, folder, times), *await queries(args, folder, times)]


if __name__ == "__main__":
    harness.main(measure)
