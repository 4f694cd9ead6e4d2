"""A root with lost frames and full disks, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from orch import Limits
from orch_protocol.core.errors import LaunchError, ProtocolError, StoreError
from orch_protocol.core.messages import text_of, user
from orch_protocol.wire.frames import MAX_BODY
from orch_worker.session.session_reader import read_session
from orchestrator.root_double import Gate, Slow, opened
from virtual_clock import passed, until, virtual

# Lost frames.


@pytest.mark.parametrize(
    "kind", ["hello", "init", "ready", "query", "finished", "root_call", "root_reply", "ack", "progress"]
)
@pytest.mark.parametrize("times", [1, 3])
@virtual
async def test_lost_frame_is_resent_and_handled_once(tmp_path: Path, kind: str, times: int) -> None:
    """For each type of frame in a conversation, each answer arrives once, and each tool runs once."""
    lost: list[str] = []
    calls: list[str] = []

    async def note(word: str) -> str:
        """Note a word."""
        calls.append(word)
        return f"noted {word}"

    def lose(found: str) -> bool:
        if found == kind and len(lost) < times:
            lost.append(found)
            return True
        return False

    async with opened(tmp_path) as world:
        world.lose(lose)
        agent = await world.scripted({"tool": "note", "input": {"word": "x"}}, "one", "two", tools=[note])
        first, second = await agent.query("first"), await agent.query("second")
        assert (first.text, first.tool_calls, second.text) == ("one", 1, "two")
        assert calls == ["x"]
        session = read_session(Path((await agent.state()).folder))
        assert [text_of(message) for message in session.messages if message.role == "assistant"] == ["", "one", "two"]
    if kind != "progress":
        assert len(lost) in (times, 1)


@pytest.mark.parametrize("seed", range(8))
@virtual
async def test_conversations_survive_the_loss_of_a_third_of_all_frames(tmp_path: Path, seed: int) -> None:
    """Each of several queries is answered once, and each tool runs once."""
    luck = random.Random(seed)
    calls: list[int] = []

    async def count(number: int) -> str:
        """Count."""
        calls.append(number)
        return "counted"

    items = [item for number in range(6) for item in ({"tool": "count", "input": {"number": number}}, f"{number}")]
    async with opened(tmp_path) as world:
        world.lose(lambda _: luck.random() < 0.33)
        agent = await world.scripted(*items, tools=[count])
        for number in range(6):
            assert (await agent.query(f"number {number}")).text == f"{number}"
        assert calls == list(range(6))


def big(what: str) -> dict[str, Any]:
    """Return options that make the body of a frame of the type `what` larger than a frame may be."""
    text = "x" * (MAX_BODY + 1)
    return {
        "init": {"history": [user(text)]},
        "root_call": {"items": [{"tool": "note", "input": {"word": text}}, "done"]},
        "finished": {"items": [text], "limits": Limits(reply_tokens=MAX_BODY)},
        "query": {},
    }[what]


@pytest.mark.parametrize("kind", ["query", "root_call", "finished"])
@virtual
async def test_missing_spooled_body_is_reported(tmp_path: Path, kind: str) -> None:
    """No caller waits for the lost body, and the agent continues."""

    async def note(word: str) -> str:
        """Note a word."""
        return word

    async with opened(tmp_path) as world:
        agent = await world.scripted(**({"tools": [note], "items": ["done"]} | big(kind)))
        world.spoil(kind)
        started = asyncio.get_running_loop().time()
        asked = agent.query("x" * (MAX_BODY + 1) if kind == "query" else "go")
        if kind == "query":
            with pytest.raises(ProtocolError, match="cannot read the message"):
                await asked
        elif kind == "finished":
            assert len((await asked).text) == MAX_BODY + 1
        else:
            assert (await asked).text == "done"
            messages = read_session(Path((await agent.state()).folder)).messages
            assert "cannot read the message" in str([block for message in messages for block in message.content])
        assert asyncio.get_running_loop().time() - started < 10
        assert world.status(agent) == "idle"


@virtual
async def test_lost_worker_init_fails_the_launch(tmp_path: Path) -> None:
    """The LaunchError comes at once and contains the reason."""
    async with opened(tmp_path) as world:
        world.spoil("init")
        with pytest.raises(LaunchError, match="cannot read the message"):
            await world.scripted(**big("init"))
        assert asyncio.get_running_loop().time() < 5


@virtual
async def test_undeliverable_worker_init_fails_the_launch(tmp_path: Path) -> None:
    """The worker does not wait for a frame that cannot be written."""
    async with opened(tmp_path) as world:
        spool = world.supervisor.workers.transport.peers.spool
        spool.rmdir()
        spool.write_text("in the way")
        with pytest.raises(LaunchError, match="cannot write the message"):
            await world.scripted(**big("init"))
        assert asyncio.get_running_loop().time() < 5
        spool.unlink()


@pytest.mark.parametrize("kind", ["query", "finished"])
@virtual
async def test_unread_spooled_body_is_removed_with_its_process(tmp_path: Path, kind: str) -> None:
    """The spooled files of a connection are removed when its worker has died."""
    async with opened(tmp_path) as world:
        spool = world.supervisor.workers.transport.peers.spool
        other, agent = await world.scripted("one"), await world.scripted(**({"items": ["done"]} | big(kind)))
        world.lose(lambda found: found == kind)
        asked = agent.submit("x" * (MAX_BODY + 1) if kind == "query" else "go")
        await until(lambda: any(spool.glob("*/*.spill")))
        world.lose(lambda _: False)
        world.launcher.worker(agent.id).die(-9)
        assert (await asked).text
        assert not any(spool.glob(f"{agent.id}.1.*"))
        assert (await other.query("go")).text == "one"


@virtual
async def test_undeliverable_steering_is_kept_for_the_next_process(tmp_path: Path) -> None:
    """The running query is unaffected."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("one", "two")
        world.launcher.worker(agent.id).die(-9)
        await until(lambda: world.status(agent) == "died")
        await agent.steer("x" * (MAX_BODY + 1))
        spool = world.supervisor.workers.transport.peers.spool
        spool.rmdir()
        spool.write_text("in the way")
        assert (await agent.query("first")).text == "one"
        spool.unlink()
        world.launcher.worker(agent.id).die(-9)
        await until(lambda: world.status(agent) == "died")
        assert (await agent.query("second")).text == "two"
        assert "xxx" in str(read_session(Path((await agent.state()).folder)).messages[-2])
        assert world.supervisor.tree.agents[agent.id].unheard == {}


# Full disks.


@virtual
async def test_full_disk_refuses_requests_and_loses_no_event(tmp_path: Path) -> None:
    """Running work is completed, and the journal is written when the disk has room."""
    gate = Gate()
    async with opened(tmp_path) as world:
        agent = await world.scripted({"tool": "gate"}, "done", "again", tools=[gate.tool()])
        other = await world.scripted("fine")
        future = agent.submit("go")
        await gate.called.wait()
        make_room = world.fill_disk()
        for attempt in (world.scripted(), other.query("you?")):
            with pytest.raises(StoreError, match="disk full"):
                await attempt
        gate.open.set()
        assert (await future).text == "done"
        world.launcher.worker(other.id).die(-9)
        await passed(1)
        assert (await other.state()).status == "died"
        with pytest.raises(StoreError, match="disk full"):
            await agent.collect()
        make_room()
        reply = await agent.collect()
        assert reply is not None
        assert reply.text == "done"
        assert (await other.query("you?")).text == "fine"


@virtual
async def test_kill_on_a_full_disk_ends_the_process(tmp_path: Path) -> None:
    """The error says that the kill is not recorded."""
    async with opened(tmp_path) as world:
        agent = await world.scripted()
        make_room = world.fill_disk()
        with pytest.raises(StoreError, match=r"killed .* not recorded.*disk full"):
            await agent.kill()
        assert (await agent.state()).status == "killed"
        assert world.launcher.worker(agent.id).ended.done()
        make_room()
        await world.scripted()


@virtual
async def test_failed_launch_on_a_full_disk_fails_the_agent(tmp_path: Path) -> None:
    """The spawn fails at once with the launch error."""
    launcher = Slow()
    async with opened(tmp_path, launcher=launcher) as world:
        spawning = asyncio.ensure_future(world.scripted())
        await launcher.asked.wait()
        make_room = world.fill_disk()
        launcher.failures += ["no memory"] * 4
        launcher.go.set()
        with pytest.raises(LaunchError, match="no memory"):
            await spawning
        make_room()
        await world.scripted()


@virtual
async def test_undeliverable_prompt_fails_its_query(tmp_path: Path) -> None:
    """If the file of a large prompt cannot be written, the query fails and the agent is idle again."""
    async with opened(tmp_path) as world:
        agent = await world.scripted("fine")
        spool = world.supervisor.workers.transport.peers.spool
        spool.rmdir()
        spool.write_text("in the way")
        with pytest.raises(StoreError, match="spill"):
            await agent.query("x" * (MAX_BODY + 1))
        assert (await agent.state()).status == "idle"
        spool.unlink()
        assert (await agent.query("x" * (MAX_BODY + 1))).text == "fine"
