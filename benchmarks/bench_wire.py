"""Real SDKs on the loopback interface.

The bench measures the first answer of a new agent, the memory of the agent afterwards, and a step compared with a plain
call of the SDK.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import harness
from bench_memory import private_mib
from bench_roundtrip import timed
from harness import Args, Row

from orch_protocol.services.service import AnyService

MODELS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-4o"}
KEYS = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}
SPAWNS_A_ROUND = 3
STEPS_A_ROUND = 20
LONG = 400

FIRST = (">= 15", ">= 50")
MEMORY = ("<= 0.2", "<= 0.15")
STEP = ("<= 1.3", "<= 1.1")


def base_urls(url: str) -> dict[str, str]:
    """Return the addresses of the providers' APIs at the server `url`."""
    return {"anthropic": url, "openai": f"{url}/v1"}


def fresh(sdk: str, url: str) -> float:
    """Return the seconds from the start of a new process to the answer that the process prints."""
    script = str(harness.PEERS / "fresh_asker.py")
    begin = perf_counter()
    with subprocess.Popen([sys.executable, script, sdk, url, MODELS[sdk]], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        taken = perf_counter() - begin
    if not said.strip():
        raise RuntimeError(f"{script} gave no answer (exit code {process.returncode})")
    return taken


async def answers(args: Args, folder: Path, url: str) -> list[Row]:
    """Spawn agents and query them with each SDK in turn. Measure the memory after one answer."""
    import entries
    import zmq_echo

    from orch import AsyncOrchestrator, Config

    # The kernel shows the memory of a worker only if this variable is set.
    os.environ["ORCH_DEBUG_DUMPABLE"] = "1"
    addresses = {f"{sdk.upper()}_BASE_URL": address for sdk, address in base_urls(url).items()}
    hub, weights, plain = zmq_echo.Hub(folder), dict[str, list[float]]((sdk, []) for sdk in MODELS), list[float]()
    async with AsyncOrchestrator(
        model="anthropic:claude-sonnet-5-5",
        config=Config(),
        home=folder / "home",
        launcher=entries.launcher,
        env={**KEYS, **addresses, "PATH": os.environ["PATH"]},
    ) as orchestrator:

        def spawned(sdk: str) -> Callable[[], Awaitable[float]]:
            async def seconds() -> float:
                taken = []
                for _ in range(SPAWNS_A_ROUND):
                    begin = perf_counter()
                    # The peer gets no information about a project either.
                    agent = await orchestrator.spawn("nothing", model=f"{sdk}:{MODELS[sdk]}", context="none")
                    await agent.query("hi")
                    taken.append(perf_counter() - begin)
                    os.kill(agent.pid, signal.SIGUSR1)
                    # The signal interrupts the waiting worker, so the worker answers the ping after the collection.
                    await agent.ping()
                    weights[sdk].append(private_mib(agent.pid))
                    await agent.kill()
                return median(taken)

            return seconds

        def weigh_plain() -> float:
            worker = zmq_echo.Worker(hub, "plain_worker.py")
            worker.ask("gc")
            plain.append(private_mib(worker.pid))
            worker.stop()
            return plain[-1]

        sides: dict[str, harness.Side] = {"plain": weigh_plain}
        for sdk in MODELS:
            sides |= {f"ours {sdk}": spawned(sdk), f"fresh {sdk}": lambda sdk=sdk: fresh(sdk, url)}  # type: ignore[misc]
        took = await harness.interleave(args.rounds, **sides)
    hub.close()
    rows = []
    for sdk in MODELS:
        ours, peer = ([1000 * seconds for seconds in took[f"{side} {sdk}"]] for side in ("ours", "fresh"))
        rows.append(
            harness.compared(
                f"spawn to first model answer, {sdk} (ms; peer: new process that imports it and asks; times faster)",
                ours,
                peer,
                must=FIRST[0],
                aim=FIRST[1],
                inverse=True,
            )
        )
    for sdk in MODELS:
        rows.append(
            harness.compared(
                f"private memory after gc, one streamed answer, {sdk} (MiB; peer: plain worker)",
                [median(weights[sdk])],
                [median(plain)],
                must=MEMORY[0],
                aim=MEMORY[1],
            )
        )
    return rows


class UnusedRoot:
    """A root that answers no requests."""

    def report(self, phase: str, detail: str, step: int) -> None:
        """Do nothing."""

    async def call_root(self, service: AnyService, *_: Any) -> Any:
        """Serve nothing."""
        raise RuntimeError(f"an agent of this bench asked its root for {service.name}")

    def emit(self, query_id: str, kind: str, text: str, name: str, step: int, is_error: bool) -> None:
        """Do nothing."""

    def is_watched(self) -> bool:
        """Return False, because the bench has no client that watches."""
        return False

    def called(self, query_id: str, called: Any) -> None:
        """Do nothing."""

    def steering_recorded(self, steer_id: str) -> None:
        """Do nothing."""

    def stop(self, code: int = 0) -> None:
        """Raise an error, because the agent cannot continue."""
        raise RuntimeError(f"the agent stopped with {code}")


def conversation(length: int) -> tuple[Any, ...]:
    """Return a history of `length` messages, which are questions, calls, results and answers."""
    from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse

    def four(number: int) -> list[Message]:
        call = ToolUse(f"toolu_{number}", "read_file", {"path": f"src/module_{number}.py", "offset": number})
        said = Text(f"Part {number} of what there is to say about it. " * 8)
        return [
            Message("user", (said,)),
            Message("assistant", (said, call)),
            Message("user", (ToolResult(call.id, (said,)),)),
            Message("assistant", (said,)),
        ]

    return tuple(message for number in range(length // 4) for message in four(number))


def bare_call(sdk: str, url: str) -> Callable[[dict[str, Any]], Awaitable[str]]:
    """Return a function that sends a request with the SDK alone, as its documentation shows.

    The function returns the streamed text.
    """
    if sdk == "anthropic":
        import anthropic

        messages = anthropic.AsyncAnthropic(api_key="k", base_url=url).messages

        async def ask_anthropic(body: dict[str, Any]) -> str:
            stream = await messages.create(**body)
            return "".join([event.delta.text async for event in stream if event.type == "content_block_delta"])

        return ask_anthropic
    import openai

    completions = openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1").chat.completions

    async def ask_openai(body: dict[str, Any]) -> str:
        stream = await completions.create(**body)
        return "".join([event.choices[0].delta.content or "" async for event in stream if event.choices])

    return ask_openai


async def step(args: Args, folder: Path, server: harness.Peer, sdk: str, length: int) -> Row:
    """Measure an agent with `length` earlier messages, and the SDK with the same request that the agent sent.

    A turn of the agent is one step here. The turn records the prompt, the response and the reply.
    """
    from orch_protocol.agent.spec import AgentSpec, BackendSpec
    from orch_protocol.wire.worker_messages import Query
    from orch_worker.agent.runtime import Runtime
    from orch_worker.backends import models
    from orch_worker.backends.registry import complete
    from orch_worker.tools.dispatch.presets import granted_tools

    url = server.ask()["url"]
    given = BackendSpec(sdk, MODELS[sdk], {"base_url": base_urls(url)[sdk]})
    backend = complete(given, models.load(), {}, KEYS)
    bare, body = bare_call(sdk, url), dict[str, Any]()
    history, tools = conversation(length), granted_tools()

    async def ours() -> float:
        with harness.scratch() as session:
            spec = AgentSpec("a1", 1, "agent", "task", backend, str(session), str(folder), tools=tools, history=history)
            runtime = Runtime(spec, KEYS, UnusedRoot())

            async def turn() -> None:
                finished = await runtime.query("q", Query("and now?"), runtime.begin_turn())
                if finished.error is not None:
                    raise RuntimeError(finished.error.message)

            try:
                await turn()
                taken = await timed(STEPS_A_ROUND, turn)
                body.update(server.ask()["last"])
            finally:
                runtime.close()
                await runtime.backend.close()
        return taken

    async def peer() -> float:
        await bare(body)
        return await timed(STEPS_A_ROUND, lambda: bare(body))

    await ours()
    took = await harness.interleave(args.rounds, ours=ours, peer=peer)
    return harness.compared(
        f"a step, {sdk}, {length or 'no'} messages before (us; peer: the SDK's bare call, streamed)",
        took["ours"],
        took["peer"],
        must=STEP[0],
        aim=STEP[1],
    )


async def measure(args: Args) -> list[Row]:
    """Measure first answers and memory with processes, then steps in this process."""
    sys.path.append(str(harness.PEERS))
    server = harness.Peer(sys.executable, "model_server.py")
    try:
        with harness.scratch() as folder:
            rows = await answers(args, folder, server.ask()["url"])
            rows += [await step(args, folder, server, sdk, length) for sdk in MODELS for length in (0, LONG)]
    finally:
        server.close()
    return rows


if __name__ == "__main__":
    harness.main(measure)
