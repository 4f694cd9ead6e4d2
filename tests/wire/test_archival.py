"""Requests of agents with archival, with each API: they are valid, keep the cached prefix, and list live subagents."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch import ArchivalConfig, AsyncOrchestrator, AsyncSubagent, Config, SubagentsConfig
from orch.testing import fake_world
from orch_protocol.agent.config import SummaryConfig, TriggerConfig
from orch_worker.conversation.live_subagents import HEADING
from orch_worker.session.session_reader import read_session
from wire.model_server import Answer, ModelServer, Request, call, fail, say
from wire.sent_requests import MARKER, STUB, Sent, assert_goes_on, of_agents, taken_apart

MODELS = {
    "messages": "anthropic:claude-sonnet-5-5",
    "chat": "openai:gpt-4o",
    "responses": "openai:gpt-6-luna",
}
SEED = ArchivalConfig(enabled=True, async_=False, profile="seed", trigger=TriggerConfig(tool_call_threshold=2))
TIGHT = ArchivalConfig(
    enabled=True,
    profile="economy",
    high_tokens=4000,
    low_tokens=1200,
    rollup_tokens=900,
    gate=True,
    block_entries=3,
    summary=SummaryConfig(style="structured"),
)
SUMMARY = '{"outcome": "All was read.", "key_findings": ["one.txt says 4711"]}'
PATIENT = 30.0

Begin = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files to read."""
    (tmp_path / "one.txt").write_text("the port is 4711, says Señor Žluťoučký\n" + "all is quiet\n" * 40)
    (tmp_path / "two.txt").write_text("this is two\n" * 60)
    return tmp_path


@pytest.fixture
async def begin(server: ModelServer, folder: Path) -> AsyncIterator[Begin]:
    """A function that opens roots. Their models are at `server`, and their agents run on the test's event loop."""
    opened: list[AsyncOrchestrator] = []

    async def begin(model: str, archival: ArchivalConfig, **more: Any) -> AsyncOrchestrator:
        env = {
            "ANTHROPIC_API_KEY": "k1",
            "ANTHROPIC_BASE_URL": server.url,
            "OPENAI_API_KEY": "k2",
            "OPENAI_BASE_URL": f"{server.url}/v1",
        }
        config = Config(archival=archival, subagents=SubagentsConfig(allow_nested=True))
        home = folder / f"home{len(opened)}"
        opened.append(await AsyncOrchestrator(model, config=config, home=home, env=env, **fake_world(), **more).start())
        return opened[-1]

    yield begin
    for each in opened:
        await each.close()


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    """A model of each API."""
    return MODELS[request.param]


def read(*paths: str, **more: Any) -> Answer:
    """Return an answer that reads all files `paths` at the same time."""
    return call(*({"call": "read_file", "input": {"path": path}} for path in paths), **more)


async def reader(root: AsyncOrchestrator, folder: Path, *tools: str) -> AsyncSubagent:
    """Return an agent with the tool `read_file` and with `tools`."""
    return await root.spawn("Read", tools=["read_file", *tools], cwd=folder)


class Model:
    """A model with random answers: parallel calls, thinking, failures, and summaries of all kinds."""

    def __init__(self, server: ModelServer, *, thinks: bool) -> None:
        self.chance = random.Random(7)
        self.steps = 0
        self.asked: list[str] = []
        self.interruptions: list[Callable[[], Any]] = []
        self._server = server
        self._thinks = thinks
        self._tasks: list[asyncio.Task[Any]] = []

    def __call__(self, request: Request) -> Answer:
        """Return a random answer to the request."""
        text = request.raw.decode()
        if not request.body.get("tools") or "Call no tools" in text:
            return self._summary("beside" if request.body.get("tools") else "apart")
        usage = {"input": len(text) // 4, "output": 20}
        self.steps += 1
        dice = self.chance.random()
        if self.interruptions and dice < 0.3:
            self._tasks.append(asyncio.ensure_future(self.interruptions.pop(0)()))
        if dice < 0.05:
            return fail(529, "overloaded_error", retry_after="0")
        if dice > 0.65:
            return say(f"Step {self.steps} is done. " + "All is well. " * self.chance.randint(0, 30), usage=usage)
        paths = self.chance.choices(["one.txt", "two.txt", "gone.txt"], k=self.chance.randint(1, 4))
        thinking = self.chance.choice(["", f"On to step {self.steps}."]) if self._thinks else ""
        return read(*paths, text=self.chance.choice(["", "Let me see."]), thinking=thinking, usage=usage)

    def _summary(self, where: str) -> Answer:
        self.asked.append(where)
        dice = self.chance.random()
        if dice < 0.1:
            return fail(400, "invalid_request_error", "no")
        if dice < 0.2:
            return fail(429, "rate_limit_error", retry_after="0")
        if dice < 0.3:
            return say("What a day it was.")
        if dice < 0.35:
            return say("half", after=2, how="drop")
        if dice < 0.5:
            return read("one.txt")
        return say(SUMMARY)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("behind", [True, False], ids=["behind the reply", "before the reply"])
async def test_long_conversation_with_archival_stays_valid(
    server: ModelServer, begin: Begin, model: str, behind: bool, folder: Path
) -> None:
    """The server accepts every request of a long conversation with archival.

    The conversation contains parallel calls, thinking, failures, steering, cancelled turns, phases, eras and summaries.
    Each request extends the previous one. Only archived parts are replaced.
    """
    root = await begin(model, msgspec.structs.replace(TIGHT, async_=behind))
    agent = await reader(root, folder)
    server.otherwise = works = Model(server, thinks="gpt-4o" not in model)
    cut = 0
    for number in range(64):
        if number % 9 == 4:
            works.interruptions.append(lambda: agent.steer("Be quick."))
        if number % 13 == 6:
            works.interruptions.append(agent.cancel)
        reply = await agent.query(f"Look into part {number}.", timeout=PATIENT)
        cut += reply.stop_reason == "cancelled"
    assert server.refused == []
    sent = of_agents(server.requests)
    gone = set().union(*(assert_goes_on(*pair) for pair in pairwise(sent)))
    shown = {row.id for row in await root.archives.list()}
    rows = await root.supervisor.archives.list_records(root.supervisor.tree.agents[agent.id].spec)
    assert {row.kind for row in rows} == {"turn", "phase", "era"}
    assert shown < {row.id for row in rows}
    assert len(gone) > 10
    assert cut
    assert {"beside", "apart"} & set(works.asked)
    assert any(row.summarized for row in rows)
    assert not all(row.summarized for row in rows if row.kind != "era")
    assert len(max((each.raw for each in sent), key=len)) < 40_000
    for each in sent:
        assert_list_placement(each)


async def test_archived_turns_are_listed_once_after_their_records(
    server: ModelServer, begin: Begin, model: str, folder: Path
) -> None:
    """Each request lists the archived turns once, after their records. The list is not in the transcript."""
    root = await begin(model, SEED)
    agent = await reader(root, folder)
    server.script += [read("one.txt", "two.txt"), say("4711"), say(SUMMARY), read("one.txt"), say("again"), say("bye")]
    reply = await agent.query("Which port?")
    for prompt in ("Once more?", "And now?"):
        await agent.query(prompt)
    assert server.refused == []
    sent = of_agents(server.requests)
    assert [bool(each.listed) for each in sent] == [False, False, True, True, True]
    assert sent[2].listed == sent[3].listed == sent[4].listed
    for each in sent:
        assert_list_placement(each)
        assert not each.tail
    assert f"- id: {reply.archived_to} | task: Archive: Which port?" in sent[-1].listed
    folder_of = Path((await agent.state()).folder)
    assert HEADING not in (folder_of / "session.jsonl").read_text()
    assert not any(HEADING in repr(message) for message in read_session(folder_of).messages)


async def test_prefix_before_an_archived_turn_is_unchanged(
    server: ModelServer, begin: Begin, model: str, folder: Path
) -> None:
    """Archiving a turn leaves everything before the turn unchanged, and its record contains the reply."""
    root = await begin(model, msgspec.structs.replace(SEED, summary=SummaryConfig(model="openai:gpt-4o")))
    agent = await reader(root, folder)
    server.script += [say("Good day."), read("one.txt", "two.txt", text="Hm."), say("It is 4711."), say(SUMMARY)]
    await agent.query("Hello")
    reply = await agent.query("Which port?")
    await agent.query("Thanks")
    *_, before, after = of_agents(server.requests)
    assert assert_goes_on(before, after) == {reply.archived_to}
    asked = next(place for place, piece in enumerate(before.pieces) if "Which port?" in piece)
    assert after.pieces[: asked + 1] == before.pieces[: asked + 1]
    assert "Outcome: All was read." in after.pieces[asked + 1]
    assert "It is 4711." in after.pieces[asked + 1]
    assert len(after.pieces) == asked + 3


async def test_archive_block_in_the_system_text(server: ModelServer, begin: Begin, model: str, folder: Path) -> None:
    """With the placement `system`, the live-subagents block is at the end of the system text, and there is no tail."""
    root = await begin(model, msgspec.structs.replace(SEED, placement="system"))
    agent = await reader(root, folder)
    turn = [read("one.txt", "two.txt"), say("4711", usage={"input": 900}), say(SUMMARY)]
    server.script += turn * 2
    reply = await agent.query("Which port?")
    await agent.query("Once more?")
    assert server.refused == []
    sent = of_agents(server.requests)
    assert [HEADING in each.system for each in sent] == [False, False, True, True]
    assert sent[-1].system.startswith(sent[0].system)
    assert sent[-1].system.endswith(f"- id: {reply.archived_to} | task: Archive: Which port?")
    assert sent[-1].tail == ""
    # The summary request has the same system text, so that the conversation is read from the cache.
    assert taken_apart(server.requests[-1]).system == sent[-1].system


async def test_disabled_archival_does_not_change_requests(
    server: ModelServer, begin: Begin, model: str, folder: Path
) -> None:
    """If archival is disabled, its other settings do not change a byte of the requests."""
    bodies: list[list[bytes]] = []
    for archival in (ArchivalConfig(), msgspec.structs.replace(SEED, enabled=False, placement="system")):
        server.requests.clear()
        server.script += [read("one.txt", "two.txt"), say("4711"), say("bye")]
        agent = await reader(await begin(model, archival), folder)
        for prompt in ("Which port?", "Thanks"):
            await agent.query(prompt)
        # The server numbers the ids of calls. Both conversations need the same ids.
        bodies.append([request.raw for request in server.requests])
        server._number = 0
    assert server.refused == []
    assert bodies[0] == bodies[1]
    assert not any(b"archive" in body for body in bodies[0])


async def test_archival_decision_depends_on_the_models_prices(server: ModelServer, begin: Begin, folder: Path) -> None:
    """The same turn is archived for a model with expensive cache reads, and kept for a model with cheap cache reads."""
    gone = {}
    for name in ("anthropic:claude-haiku-4-5", "openai:gpt-4"):
        root = await begin(name, ArchivalConfig(enabled=True, async_=False))
        agent = await reader(root, folder)
        server.script += [read("one.txt", "two.txt"), say("It is 4711.")]
        server.otherwise = lambda _: say(SUMMARY)
        gone[name] = (await agent.query("Which port?")).archived_to is not None
    assert server.refused == []
    assert gone == {"anthropic:claude-haiku-4-5": False, "openai:gpt-4": True}


async def test_subagents_are_listed_at_the_end_of_each_request(
    server: ModelServer, begin: Begin, model: str, folder: Path
) -> None:
    """The end of each request lists a subagent until the subagent is killed. Archives are not listed there."""
    root = await begin(model, SEED)
    agent = await reader(root, folder, "spawn_subagent")
    spawning = {"call": "spawn_subagent", "input": {"task": "Count the pumps", "tools": ["read_file"]}}
    server.script += [call(spawning), say("spawned"), read("one.txt", "two.txt"), say("4711"), say(SUMMARY)]
    await agent.query("Get help")
    (child,) = [row for row in await root.agents() if row.id != agent.id]
    reply = await agent.query("Which port?")
    await agent.query("Thanks")
    await root.kill(child.id)
    await agent.query("And now?")
    assert server.refused == []
    sent = of_agents(server.requests)
    mine = f"- id: {child.id} | task: Count the pumps"
    assert [mine in each.tail for each in sent] == [False, True, True, True, True, False]
    assert [f"- id: {reply.archived_to}" in each.listed for each in sent] == [False] * 4 + [True] * 2
    assert not any(str(reply.archived_to) in each.tail for each in sent)


async def test_holder_receives_numbered_text_and_no_tools(
    server: ModelServer, begin: Begin, model: str, folder: Path
) -> None:
    """A holder gets the archived messages as numbered entries, without tools, and its answer cites the entries."""
    root = await begin(model, SEED)
    agent = await reader(root, folder)
    thinking = "" if "gpt-4o" in model else "Both at once."
    server.script += [read("one.txt", "two.txt", thinking=thinking), say("It is 4711."), say(SUMMARY)]
    reply = await agent.query("Which port?")
    holder = await root.get(reply.archived_to or "")
    server.script += [say("The port is 4711 [entry 3]."), say("Señor Žluťoučký said so [entry 3].")]
    assert (await holder.query("The port?")).text == "The port is 4711 [entry 3]."
    assert (await holder.query("Who said so?")).text == "Señor Žluťoučký said so [entry 3]."
    assert server.refused == []
    first, second = server.requests[-2:]
    assert "tools" not in first.body
    sent, more = taken_apart(first), taken_apart(second)
    assert "The topic: Which port?" in sent.system
    assert "[entry 12]" in sent.system
    texts = "\n".join(sent.pieces)
    for entry in range(1, 5):
        assert f"[entry {entry}]" in texts
    assert "tool_use: read_file" in texts
    assert "tool_use_id" not in texts
    assert "call_id" not in texts
    assert more.pieces[: len(sent.pieces)] == sent.pieces
    assert sent.tail == ""


async def test_agent_asks_its_holder(server: ModelServer, begin: Begin, model: str, folder: Path) -> None:
    """An agent queries a holder with a tool that archival grants, and the next request contains the answer."""
    root = await begin(model, SEED)
    agent = await reader(root, folder)
    server.script += [read("one.txt", "two.txt"), say("It is 4711."), say(SUMMARY)]
    reply = await agent.query("Which port?")
    asking = {"call": "query_subagent", "input": {"id": reply.archived_to, "prompt": "Who said so?"}}
    server.script += [call(asking), say("Señor Žluťoučký [entry 3]."), say("He did.")]
    assert (await agent.query("Who said so?")).text == "He did."
    assert server.refused == []
    assert "\\u017dlu\\u0165ou\\u010dk\\u00fd [entry 3]" in of_agents(server.requests)[-1].pieces[-1]


FAILURES = {
    "a limit": fail(429, "rate_limit_error", retry_after="600"),
    "refused": fail(400, "invalid_request_error", "not today"),
    "no summary": say("What a day it was."),
    "nothing": Answer(),
    "calls": read("one.txt"),
    "silence": Answer(gate=asyncio.Event()),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_failed_summary_leaves_the_receipt(
    server: ModelServer, begin: Begin, model: str, folder: Path, failure: str
) -> None:
    """If the request for a summary fails, the record stays a receipt, and the conversation continues."""
    summary = SummaryConfig(timeout_seconds=0.05)
    root = await begin(model, msgspec.structs.replace(SEED, async_=True, summary=summary))
    agent = await reader(root, folder)
    server.script += [read("one.txt", "two.txt"), say("It is 4711.")]

    def otherwise(request: Request) -> Answer:
        summary = not request.body.get("tools") or "Call no tools" in str(request.body)
        return FAILURES[failure] if summary else say("as ever")

    server.otherwise = otherwise
    await agent.query("Which port?", timeout=PATIENT)
    await until(lambda: len(server.requests) > 2)
    for prompt in ("Thanks", "Bye"):
        assert (await agent.query(prompt, timeout=PATIENT)).text == "as ever"
    assert server.refused == []
    (row,) = await root.archives.list()
    assert not row.summarized
    last = of_agents(server.requests)[-1]
    assert "Read: {one,two}.txt" in "".join(last.pieces)
    assert last.holders == [row.id]


def assert_list_placement(sent: Sent) -> None:
    """Assert that a request with records of archives lists them once, after the last record and before later steps."""
    text = sent.raw.decode()
    assert text.count(HEADING) == bool(sent.listed) == bool(sent.holders)
    if sent.listed:
        place = text.index(HEADING)
        assert max(match.start() for match in STUB.finditer(text)) < place
        if MARKER in sent.raw:
            assert text.rindex(MARKER.decode()) > place


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # another task makes it true
            await asyncio.sleep(0.01)
