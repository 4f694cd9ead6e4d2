"""Images in prompts, in `history` and in tool results, through the API."""

from __future__ import annotations

from pathlib import Path

import pytest

from custom_backends import Yields
from orch import ArchivalConfig, Config, Image, assistant, user
from orch.tree.journal.entries import QueryStarted
from orch_protocol.agent.config import TriggerConfig
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Message, Text, ToolResult, text_of
from orchestrator.root_double import World, opened
from pictures import png

DOT = Image.from_bytes(png(2, 1), "dot.png")
SEEN = "[image: dot.png, 2x1]"


def prompts(backend: Yields) -> list[Message]:
    """Return the last message of each request."""
    return [request.messages[-1] for request in backend.requests]


async def test_images_reach_the_model_and_survive_a_restart(tmp_path: Path) -> None:
    """Images are part of the transcript: the model also receives them after a restart and in a fork."""
    backend = Yields("a dot")
    async with opened(tmp_path) as o:
        agent = await o.spawn("Look", backend=backend, context="none", tools=[])
        await agent.query(["What is this?", DOT])
        assert prompts(backend)[0].content == (Text("Task: Look\n\nQuery: What is this?"), DOT)
        await agent.kill()
        await agent.resume()
        await agent.query("Sure?")
        copy = await agent.session.fork(name="copy")
        await copy.query("And you?")
        assert [request.messages[0] for request in backend.requests] == [prompts(backend)[0]] * 3
        shown = await agent.show()
        assert text_of(shown.messages[0]).endswith(f"What is this?\n\n{SEEN}")


async def test_images_of_megabytes_reach_the_model(tmp_path: Path) -> None:
    """An image of nearly 4 MB can be in a prompt and in a tool result."""
    large = Image.from_bytes(png(1, 1, 3_900_000), "large.png")

    def look() -> Image:
        """Look."""
        return large

    async with opened(tmp_path) as o:
        agent = await o.scripted({"tool": "look", "input": {}}, "done", tools=[look])
        await agent.query(["What is this?", large])
        prompt, _, result, _ = (await agent.show()).messages
        assert prompt.content[-1] == large
        assert isinstance(result.content[0], ToolResult)
        assert result.content[0].content == (large,)


async def test_submit_ask_all_and_typed_queries_take_images(tmp_path: Path) -> None:
    """Texts and images keep their order; the request for a value comes after them."""
    backend = Yields("5")
    async with opened(tmp_path) as o:
        agent = await o.spawn("Look", backend=backend, context="none", tools=[])
        await agent.submit([DOT, "First?"])
        await o.ask_all([agent], ["Second?", DOT])
        assert await agent.query(["Third?", DOT], returns=int) == 5
        first, second, third = prompts(backend)
        assert first.content[1:] == (DOT, Text("First?"))
        assert second.content == (Text("Second?"), DOT)
        assert third.content[:2] == (Text("Third?"), DOT)
        assert "JSON" in text_of(third)


async def test_images_of_a_submitted_query_are_journaled(tmp_path: Path) -> None:
    """A query that was accepted before a restart is sent with its images."""
    async with World(tmp_path, run="r") as o:
        agent = await o.spawn("Look", model="custom_backends:Echo", context="none", tools=[])
        await agent.query("Ready?")
        prompt, now = f"This:\n\n{SEEN}", o.supervisor.clock()
        o.supervisor.record(
            QueryStarted(at=now, id=agent.id, query_id="q1", head="?", stays=True, prompt=prompt, images=(DOT,))
        )
    async with World(tmp_path, run="r") as o:
        agent = await o.get(agent.id)
        reply = await agent.collect()
        assert reply is not None
        assert reply.text == f"echo {SEEN}"
        assert (await agent.show()).messages[-2] == user(["This:", DOT])


async def test_history_with_images(tmp_path: Path) -> None:
    """A message in `history` can contain texts and images."""
    backend = Yields("fine")
    async with opened(tmp_path) as o:
        history = [user(["This is a dot:", DOT]), assistant("Noted.")]
        agent = await o.spawn("Look", backend=backend, history=history, tools=[])
        await agent.query("What was it?")
        assert backend.requests[0].messages[0] == history[0]


async def test_functions_of_the_program_return_images(tmp_path: Path) -> None:
    """Images that a root function returns are sent to the agent's process."""

    def look() -> list[str | Image]:
        """Look."""
        return ["Here:", DOT]

    async with opened(tmp_path) as o:
        agent = await o.scripted({"tool": "look", "input": {}}, "done", tools=[look])
        await agent.query("Look")
        results = [block for message in (await agent.show()).messages for block in message.content]
        assert [block.content for block in results if isinstance(block, ToolResult)] == [(Text("Here:"), DOT)]


@pytest.mark.parametrize(("limit", "stays"), [(4000, DOT), (1, Text(SEEN))])
async def test_archived_images_are_found_by_their_text(tmp_path: Path, limit: int, stays: object) -> None:
    """The archive contains the image; the conversation keeps it only if its prompt is below `prompt_tokens`."""
    trigger = TriggerConfig(token_threshold=0, tool_call_threshold=0)
    archival = ArchivalConfig(
        enabled=True, async_=False, gate=False, profile="seed", trigger=trigger, prompt_tokens=limit
    )
    async with opened(tmp_path, config=Config(archival=archival)) as o:
        agent = await o.scripted("a dot", "yes")
        reply = await agent.query(["What is this?", DOT])
        (hit,) = await o.archives.search("dot.png")
        assert hit.id == reply.archived_to
        assert DOT in (await o.archives.read(hit.id))[0].content
        assert (await agent.show()).messages[0].content[-1] == stays


class TestErrors:
    """Images that are refused."""

    async def test_image_that_is_no_image(self, tmp_path: Path) -> None:
        """A query with invalid image data or with another object is not accepted."""
        async with opened(tmp_path) as o:
            agent = await o.scripted("no")
            with pytest.raises(ConfigError, match=r"image 'a\.png' is not an image"):
                await agent.query(["What?", Image("image/png", "AAAA", "a.png")])
            with pytest.raises(ConfigError, match=r"must be text, or a list of texts and orch\.Image; got PosixPath"):
                await agent.query(["What?", Path("a.png")])  # type: ignore[list-item]

    async def test_model_without_vision(self, tmp_path: Path) -> None:
        """The offline backend accepts no images."""
        async with opened(tmp_path) as o:
            agent = await o.spawn("Look", context="none")
            with pytest.raises(ConfigError, match="the extractive backend does not accept images"):
                await agent.query(["What?", DOT])
