"""Recorded conversations as tests: a replay is equal to the recording until the agent or its environment changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_history import EAGER, PROFILES, Life, steps
from foreign_sessions import pi_tree
from orch import CompactionConfig, ScriptedBackend, tool
from orch.regression.generate_test import differences, recording_of, source_of
from orch.regression.replay_agent import replay_recording, replay_session
from orch.sessions.export import read_agent_conversation
from orch.sessions.formats.conversation import ImportedSession
from orch.sessions.formats.detect import read_conversation
from orch_protocol.agent.config import Config, HooksConfig
from orch_protocol.agent.spec import AgentSpec, BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Image, Message, Reply, Text, assistant, user
from orch_protocol.core.phases import Assess, Reflect
from orch_protocol.policy.policy import PolicyConfig
from orch_protocol.resources.memory import MemoryConfig, MemorySpec, Note
from orch_protocol.session.entries import MessageEntry
from orch_worker.memory.memory_file import FileMemory
from orch_worker.session.transcript import Transcript
from orchestrator.archival.store.prune_samples import EVER
from orchestrator.root_double import opened
from pictures import png
from recordings import dump_lines

SCRIPT = [
    {"text": "I look.", "tools": [{"tool": "read_file", "input": {"path": name}} for name in ("one.txt", "no.txt")]},
    {"tool": "roll", "input": {"sides": 6}},
    {"tool": "roll", "input": {"sides": 6}},
    "One is there.",
    {"text": "And that's", "stop_reason": "max_tokens"},
]


@tool
def roll(sides: int) -> str:
    """Roll a die."""
    if not ROLLED:
        raise ValueError("it fell off the table")
    return f"{ROLLED.pop()} of {sides}"


ROLLED = ["four"]
SPEC = AgentSpec("a", 1, "a", "task", BackendSpec("scripted"), "", "/")


def lived(tmp_path: Path, session: Path | None = None, **options: Any) -> tuple[ImportedSession, AgentSpec]:
    """Return the conversation of an agent that has answered two queries, and the spec of the agent.

    In the default script, two tool calls fail, and a repeated call has another result.
    """
    (tmp_path / "one.txt").write_text("this is one\n")
    ROLLED[:] = ["four"]
    script, tools = options.pop("script", SCRIPT), options.pop("tools", ["read_file", roll])
    beside, asked = options.pop("beside", ()), options.pop("asked", "What is there?")

    async def live() -> tuple[ImportedSession, AgentSpec]:
        async with opened(tmp_path / "home", **options) as world:
            backend = ScriptedBackend(script, beside)
            if session is None:
                agent = await world.spawn("Look", backend=backend, tools=tools, cwd=tmp_path, name="a-b")
            else:
                agent = await world.sessions.import_(session, backend=backend, tools=["read_file"], cwd=tmp_path)
            await agent.query(asked)
            await agent.query("Is that all?")
            return read_agent_conversation(await agent.state()), world.supervisor.tree.agents[agent.id].spec

    return asyncio.run(live())


def generated(story: dict[str, Any]) -> Callable[[Path], None]:
    """Return the test function in the module that is generated for `story`."""
    scope: dict[str, Any] = {"__file__": "test_it.py", "__name__": "test_it"}
    exec(compile(source_of("a-b", story), "test_it.py", "exec"), scope)
    (found,) = [value for name, value in scope.items() if name.startswith("test_")]
    made: Callable[[Path], None] = found
    return made


def test_recorded_conversation_replays_as_a_passing_test(tmp_path: Path) -> None:
    """The conversation has parallel, failing and repeated calls, and its files are not needed."""
    test = generated(replay_session(*lived(tmp_path)))
    assert test.__name__ == "test_a_b"
    (tmp_path / "one.txt").unlink()
    test(tmp_path / "again")


def test_texts_replace_images_in_a_replay(tmp_path: Path) -> None:
    """The test contains neither the image of the prompt nor the image of the result."""
    image = Image.from_bytes(png(2, 1), "dot.png")

    @tool
    def look() -> Image:
        """Look."""
        return image

    script = [{"tool": "look", "input": {}}, "A dot.", "Yes."]
    found, spec = lived(tmp_path, asked=["What is this?", image], script=script, tools=[look])
    story = replay_session(found, spec)
    assert story["turns"][0]["prompt"] == "What is this?\n\n[image: dot.png, 2x1]"
    assert image.data not in str(story)
    assert differences(story, replay_recording(story, tmp_path / "again")) == []


def test_replayed_requests_equal_the_recorded_ones(tmp_path: Path) -> None:
    """The story has system texts, tool schemas and messages, but neither secrets nor paths of the machine."""
    found, spec = lived(tmp_path)
    born = BackendSpec("anthropic", "claude-sonnet-5-5", {"api": "messages", "base_url": "http://s3cret"})
    chosen = {"chosen": "openai:gpt-4o", "born": born}  # the recorded model does not matter: here it is a script
    story = replay_session(found, msgspec.structs.replace(spec, env={"SECRET": "s3cret"}, persist=False, **chosen))
    assert len(story["requests"]) == 5
    assert len(story["systems"]) == len(story["offers"]) == 1
    assert "one task, stated in the first message" in story["systems"][0]
    assert [offer[0] for offer in story["offers"][0]] == ["read_file", "roll"]
    assert story["offers"][0][1][1:] == ["Roll a die.", roll.input_schema]
    listed = [message for request in story["requests"] for message in request["more"]]
    assert listed[0]["content"][0]["text"] == "Task: Look\n\nQuery: What is there?"
    assert "s3cret" not in str(story)
    assert not {"persist", "memory", "compaction"} & {name for name, kept in story["agent"].items() if kept}
    assert str(tmp_path) not in str({name: story[name] for name in ("agent", "systems", "offers")})


def test_changed_request_fails_the_replay(tmp_path: Path) -> None:
    """Each difference names the request and the changed part."""
    story = replay_session(*lived(tmp_path))
    assert differences(story, replay_recording(story, tmp_path / "1")) == []
    other = story | {"turns": [story["turns"][0] | {"prompt": "Else?"}, story["turns"][1]]}
    found = differences(story, replay_recording(other, tmp_path / "2"))
    assert found[0].startswith("message 1: was ")
    assert any("request 1: message 1" in each and "Else?" in each for each in found)
    brief = story["agent"] | {"prompt": {"identity": "Be brief."}}
    found = differences(story, replay_recording(story | {"agent": brief}, tmp_path / "3"))
    assert found[0].startswith("request 1: its system text: was 'You are a subagent")
    more = story["agent"] | {"tools": ["read_file", "list_files"]}
    found = differences(story, replay_recording(story | {"agent": more}, tmp_path / "4"))
    assert any('tool 2: was \'["roll"' in each for each in found)
    fewer = story | {"turns": story["turns"][:1]}
    assert "4 requests are made, where 5 were" in " ".join(differences(story, replay_recording(fewer, tmp_path / "5")))


def test_selected_tools_run_during_a_replay(tmp_path: Path) -> None:
    """A tool in `live` runs in the given folder, so a changed file changes the replay."""
    story = replay_session(*lived(tmp_path))
    assert differences(story, replay_recording(story, tmp_path / "1", folder=tmp_path, live=["read_file"])) == []
    (tmp_path / "one.txt").write_text("changed\n")
    assert differences(story, replay_recording(story, tmp_path / "2", folder=tmp_path, live=["read_file"])) != []


def test_imported_history_is_replayed(tmp_path: Path) -> None:
    """The imported messages are the beginning of the replayed conversation."""
    story = replay_session(*lived(tmp_path, dump_lines(tmp_path / "s.jsonl", pi_tree())))
    assert "We read two files." in str(story["history"][0])
    assert differences(story, replay_recording(story, tmp_path / "1")) == []


def test_conversation_ending_with_a_question_continues_after_it(tmp_path: Path) -> None:
    """The first prompt is added to the question, without a task."""
    ended = dump_lines(tmp_path / "s.jsonl", [{"role": "user", "content": "Which valve?"}])
    story = replay_session(*lived(tmp_path, ended))
    assert story["conversation"][0]["text"] == "Which valve?\n\nWhat is there?"
    assert "Task: " not in str(story["requests"][0]["more"])
    assert differences(story, replay_recording(story, tmp_path / "1")) == []


WRITING = [
    {"tool": "write_file", "input": {"path": "new.txt", "content": "x"}},
    {
        "tools": [
            {"tool": "bash", "input": {"command": "rm -rf /"}},
            {"tool": "task_create", "input": {"tasks": ["think"]}},
        ]
    },
    "Done.",
    "Yes.",
]


@pytest.mark.parametrize("approved", [True, False])
def test_approvals_are_replayed(tmp_path: Path, *, approved: bool) -> None:
    """Approvals and denials are those of the recording, and a changed policy changes the replay."""
    config = Config(policy=PolicyConfig(permissions={"bash": "deny", "write_file": "ask"}))
    tools = ["write_file", "bash", "task_create"]
    found, spec = lived(tmp_path, script=WRITING, tools=tools, config=config, approve=lambda _: approved)
    assert (tmp_path / "new.txt").exists() == approved
    (tmp_path / "new.txt").unlink(missing_ok=True)
    story = replay_session(found, spec)
    assert ("[Denied: write_file" in str(story["conversation"])) != approved
    assert "[Denied: bash" in str(story["conversation"])
    assert ("think" in story["requests"][2].get("tail", "")) == approved
    assert differences(story, replay_recording(story, tmp_path / "1", folder=tmp_path)) == []
    assert not (tmp_path / "new.txt").exists()
    rules = story["agent"]["policy"]["rules"] | {"permissions": {"write_file": "deny" if approved else "allow"}}
    strict = story["agent"] | {"policy": story["agent"]["policy"] | {"rules": rules}}
    assert differences(story, replay_recording(story | {"agent": strict}, tmp_path / "2")) != []


HOOKS = """
from orch import hook

@hook("tool_result")
def tidy(event, ctx):
    return event.patch(text=event.text.replace("one", "ONE"))

@hook("context")
def note(event, ctx):
    return event.patch(inject=("Be brief.",))
"""


def test_hooks_are_replayed(tmp_path: Path) -> None:
    """A replay without the hooks differs from the recording."""
    (tmp_path / "mine.py").write_text(HOOKS)
    config = Config(hooks=HooksConfig(load=(str(tmp_path / "mine.py"),)))
    story = replay_session(*lived(tmp_path, config=config))
    assert "this is ONE" in str(story["conversation"])
    assert "Be brief." in str(story["requests"][0])
    assert "Be brief." not in str(story["conversation"])
    without = story | {"agent": story["agent"] | {"hooks": {}}}
    assert differences(story, replay_recording(without, tmp_path / "1")) != []


def test_phases_are_replayed_with_recorded_verdicts(tmp_path: Path) -> None:
    """The replies of the models that assess and reflect are recorded; a replay without them differs."""
    config = Config(hooks=HooksConfig(assess=Assess("model"), reflect=Reflect("model", model="openai:gpt-4o")))
    again = '{"verdict": "again", "note": "Look again."}'
    replies = ('{"note": "Mind it.", "plan": true}', again, "what?", '{"note": "Again."}', '{"verdict": "done"}')
    local = msgspec.structs.replace(config.hooks, reflect=Reflect("model"))
    found, spec = lived(
        tmp_path, config=msgspec.structs.replace(config, hooks=local), script=["One.", "Two.", "Three."], beside=replies
    )
    options = msgspec.structs.replace(spec.hooks.options, reflect=config.hooks.reflect)
    hooks = msgspec.structs.replace(spec.hooks, options=options)
    story = replay_session(found, msgspec.structs.replace(spec, hooks=hooks))
    assert "Look again." in str(story["conversation"])
    assert "Mind it." in str(story["conversation"])
    assert len(story["beside"]) == 5
    without = story | {"beside": []}
    assert differences(story, replay_recording(without, tmp_path / "1")) != []


def test_compactions_are_replayed(tmp_path: Path) -> None:
    """The summaries are at the recorded places; a replay with other summaries differs."""
    long, look = "word " * 300, {"tool": "read_file", "input": {"path": "one.txt"}}
    config = Config(context_compaction=CompactionConfig(compact_tokens=1_200, min_messages=1))

    async def live() -> tuple[ImportedSession, AgentSpec]:
        async with opened(tmp_path / "home", config=config) as world:
            backend = ScriptedBackend([long, long, look, long, look, "Done.", "Yes."], ["First notes.", "More notes."])
            agent = await world.spawn("Look", backend=backend, tools=["read_file"], cwd=tmp_path, context="none")
            (tmp_path / "one.txt").write_text("this is one\n")
            for number in range(4):
                await agent.query(f"Question {number}?")
            await agent.session.compact()
            await agent.query("Sure?")
            return read_agent_conversation(await agent.state()), world.supervisor.tree.agents[agent.id].spec

    story = replay_session(*asyncio.run(live()))
    assert len(story["shortened"]) >= 2
    summary = "[Summary of the conversation so far]"
    assert [summary in str(request["more"]) for request in story["requests"]].count(True) == len(story["shortened"])
    assert summary in str(story["conversation"][0])
    assert "Question 0?" not in str(story["conversation"][1:])
    generated(story)(tmp_path / "again")
    other = [each | {"summary": "Something else."} for each in story["shortened"]]
    assert differences(story, replay_recording(story | {"shortened": other}, tmp_path / "1")) != []


def test_archives_are_replayed(tmp_path: Path) -> None:
    """The archives have the recorded ids, and later requests contain their records."""
    look = {"tool": "read_file", "input": {"path": "one.txt"}}
    config = Config(archival=msgspec.structs.replace(EAGER, async_=False))

    async def live() -> tuple[ImportedSession, AgentSpec]:
        async with opened(tmp_path / "home", config=config) as world:
            backend = ScriptedBackend([look, "It is one.", look, "Still.", "Yes."])
            agent = await world.spawn("Look", backend=backend, tools=["read_file"], cwd=tmp_path, context="none")
            (tmp_path / "one.txt").write_text("this is one\n")
            for question in ("Which?", "Sure?", "Really?"):
                await agent.query(question)
            return read_agent_conversation(await agent.state()), world.supervisor.tree.agents[agent.id].spec

    story = replay_session(*asyncio.run(live()))
    holders = [each["holder"] for each in story["shortened"] if "holder" in each]
    assert len(holders) == 2
    last = [message for request in story["requests"] for message in request["more"]]
    assert all(holder in str(last) for holder in holders)
    assert story["requests"][-1]["kept"] < 4  # the archived tool results are no longer in the request
    generated(story)(tmp_path / "again")
    fewer = story["shortened"][:-1]
    assert differences(story, replay_recording(story | {"shortened": fewer}, tmp_path / "1")) != []


def test_memory_is_replayed_as_of_each_turn(tmp_path: Path) -> None:
    """A request contains no notes that were added after the start of its turn."""
    config, memory = Config(memory=MemoryConfig(enabled=True)), FileMemory(tmp_path / "kept", 10_000)
    spec = MemorySpec(str(tmp_path / "kept"))
    memory.add(Note("n1", "Valve 7 sticks.", "2026-01-01T00:00:00.000Z"))

    async def live() -> tuple[ImportedSession, AgentSpec]:
        async with opened(tmp_path / "home", config=config) as world:
            backend = ScriptedBackend(
                [{"tool": "remember", "input": {"text": "It is 9 bar."}}, "Noted.", "Yes.", "So."]
            )
            agent = await world.spawn("Look", backend=backend, tools=["remember"], cwd=tmp_path, context="none")
            for question in ("Which valve?", "Sure?", "Now?"):
                await agent.query(question)
            return read_agent_conversation(await agent.state()), world.supervisor.tree.agents[agent.id].spec

    found, agent = asyncio.run(live())
    assert agent.memory is not None
    asked = [each.timestamp for each in found.entries if isinstance(each, MessageEntry) and each.message.role == "user"]
    memory.add(Note("n2", "Valve 8 is new.", asked[-1]))
    memory.add(Note("n3", "Valve 9 is gone.", "2999-01-01T00:00:00.000Z"))
    notes = [*memory.notes(), *FileMemory(Path(agent.memory.folder), 10_000).notes()]
    story = replay_session(found, msgspec.structs.replace(agent, memory=spec), notes)
    listed = [str(story["systems"][request["system"]]) + str(request) for request in story["requests"]]
    found_texts = [[text in each for text in ("Valve 7 sticks", "Valve 8 is new", "Valve 9")] for each in listed]
    begun = [asked[0], asked[0], *asked[-2:]]  # two turns may begin within a millisecond
    assert found_texts == [[True, at == asked[-1], False] for at in begun]
    assert "It is 9 bar" not in listed[0]
    generated(story)(tmp_path / "again")
    fewer = story["memory"] | {"notes": story["memory"]["notes"][1:]}
    assert differences(story, replay_recording(story | {"memory": fewer}, tmp_path / "1")) != []


def test_going_back_behind_an_answer_is_replayed(tmp_path: Path) -> None:
    """The branch does not contain the end of the turn, so the last response is the answer."""

    async def live() -> tuple[ImportedSession, AgentSpec]:
        async with opened(tmp_path / "home") as world:
            agent = await world.spawn("Look", backend=ScriptedBackend(["One.", "Two.", "Three."]), tools=[])
            await agent.query("Which?")
            answer = next(row.id for row in (await agent.session.tree()).entries if row.role == "assistant")
            await agent.query("Sure?")
            await agent.session.checkout(answer)
            await agent.query("And else?")
            return read_agent_conversation(await agent.state()), world.supervisor.tree.agents[agent.id].spec

    story = replay_session(*asyncio.run(live()))
    assert [message["text"] for message in story["conversation"]] == ["Which?", "One.", "And else?", "Three."]
    generated(story)(tmp_path / "again")


def test_non_deterministic_conversation_is_refused(tmp_path: Path) -> None:
    """A hook that changes a prompt which it has changed before is an example; the error shows the difference."""
    (tmp_path / "mine.py").write_text(
        "from orch import hook\n\n@hook('before_turn')\ndef more(event, ctx):\n"
        "    return event.patch(prompt=event.prompt + ' Please.')\n"
    )
    config = Config(hooks=HooksConfig(load=(str(tmp_path / "mine.py"),)))
    with pytest.raises(ConfigError, match=r"differs from the recording: message 1: .*Please\. Please"):
        replay_session(*lived(tmp_path, config=config))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nothing", "no finished turn"),
        ("running", "no finished turn"),
        ("steered", "it received a message while it ran"),
        ("cancelled", "ended with 'cancelled'"),
        ("cut", "was interrupted"),
        ("deleted", "cannot replay turn 1: its messages were deleted on 2026-11-21"),
    ],
)
def test_unreplayable_turns_are_named(tmp_path: Path, what: str, words: str) -> None:
    """The error states why a turn cannot be replayed: no end, steering, a cancel, an interruption or a deletion."""
    transcript = Transcript.open(tmp_path / "a", agent="a", cwd="/")
    if what == "nothing":
        transcript.seed([user("q"), assistant("a")])
    else:
        transcript.message(user("q"), "t1")
        transcript.message(assistant("half"), "t1")
    if what == "deleted":
        gone = {"id": "aaaa0001", "parent_id": transcript.session.leaf, "timestamp": "", "turn": "t1"}
        transcript.append(MessageEntry(**gone, message=assistant("gone"), deleted="2026-11-21T10:20:30.400Z"))
    if what == "steered":
        transcript.message(user("[Steering] no"), "t1")
        transcript.message(Message("assistant", (Text("yes"),)), "t1")
    if what == "cut":
        transcript.turn_start("t2", "t1")
        transcript.message(user("again"), "t2")
    if what not in ("nothing", "running", "cut"):
        transcript.turn_end("t1", Reply("a", "t1", "x", "cancelled" if what == "cancelled" else "end_turn"))
    transcript.close()
    found = read_conversation(tmp_path / "a" / "session.jsonl")
    with pytest.raises(ConfigError, match=words):
        recording_of(found, SPEC)


def test_deleted_imported_history_cannot_be_replayed(tmp_path: Path) -> None:
    """A replay is possible if the model was shown only the archive of the deleted messages."""
    life = Life(tmp_path / "a", PROFILES["gated"])
    life.seed(user("how many valves?"), *steps(3, "a", 200), assistant("two"))
    life.turn(asked="which?", answer="red")
    assert len(life.archive()) == 1
    life.turn(asked="since when?", answer="since May")
    life.prune(EVER)
    with pytest.raises(ConfigError, match="earlier messages were deleted on 2026-11-21"):
        recording_of(read_conversation(life.transcript.path), SPEC)
    early = Life(tmp_path / "b", PROFILES["gated"])
    early.seed(user("how many valves?"), *steps(3, "a", 200), assistant("two"))
    [holder] = early.archive()
    early.turn(asked="which?", answer="red")
    early.prune(EVER)
    assert holder in str(recording_of(read_conversation(early.transcript.path), SPEC)["history"])
    for each in (life, early):
        each.close()
