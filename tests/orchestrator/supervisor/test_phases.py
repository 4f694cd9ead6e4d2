"""Assessments and reflections of agents at work: what they change, what is on record of them, what they cost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orch import Abort, AsyncSubagent, Block, Config, HooksConfig, Limits, ScriptedBackend
from orch.render.transcript import TurnPrinter
from orch.sessions.audit import audit
from orch_protocol.core.errors import RateLimitError
from orch_protocol.core.messages import text_of
from orch_protocol.core.phases import Assess, AssessRule, Reflect, ReflectRule
from orch_protocol.hooks.stages import ALIASES
from orch_protocol.session.entries import MessageEntry, PhaseEntry
from orch_protocol.wire.worker_messages import TurnEvent
from orch_worker.agent.side_requests import SideRequests
from orch_worker.agent.turn import CancelToken
from orch_worker.session.session import SessionState
from orch_worker.session.transcript import read_session
from orchestrator.root_double import World, opened

AGAIN = json.dumps({"verdict": "again", "note": "No test ran."})
DONE = json.dumps({"verdict": "done"})
NOTED = json.dumps({"verdict": "note", "note": "It is untested."})
ASSESSED = json.dumps({"note": "Mind the pump."})
READ = {"tool": "read_file", "input": {"path": "gone.txt"}}
WRITE = {"tool": "write_file", "input": {"path": "new.txt", "content": "x"}}


def config(assess: Assess | None = None, reflect: Reflect | None = None) -> Config:
    """Return a configuration with these phases."""
    return Config(hooks=HooksConfig(assess=assess or Assess(), reflect=reflect or Reflect()))


async def spawned(o: World, *said: Any, beside: tuple[str, ...] = (), **options: Any) -> AsyncSubagent:
    """Return an agent that says `said`, and `beside` when it is asked beside its conversation."""
    return await o.spawn("work", backend=ScriptedBackend(said, beside), **options)


def session(o: World, agent: AsyncSubagent) -> SessionState:
    """Return the agent's session, as its file has it."""
    return read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder))


def phases(o: World, agent: AsyncSubagent) -> list[PhaseEntry]:
    """Return what is on record of the agent's phases."""
    return [entry for entry in session(o, agent).entries if isinstance(entry, PhaseEntry)]


def told(o: World, agent: AsyncSubagent) -> list[str]:
    """Return what the agent was told by its phases."""
    messages = (entry.message for entry in session(o, agent).entries if isinstance(entry, MessageEntry))
    texts = [text_of(message) for message in messages if message.role == "user"]
    return [text for text in texts if text.startswith(("[Assessment]", "[Reflection]"))]


async def test_off_nothing_is_asked_recorded_or_told(tmp_path: Path) -> None:
    """Phases are off unless said: a turn is one request."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "ok", beside=(AGAIN,))
        reply = await agent.query("go")
        assert (reply.usage.model_calls, reply.steps, phases(o, agent)) == (1, 1, [])


async def test_a_model_assesses_and_reflects_and_is_paid_for(tmp_path: Path) -> None:
    """Its note is told, one more leg is run, the second note stands behind the reply; all of it counts."""
    events: list[TurnEvent] = []
    async with opened(tmp_path, config=config(Assess("model"), Reflect("model"))) as o:
        agent = await spawned(o, "Done.", "Done indeed.", beside=(ASSESSED, AGAIN, NOTED))
        reply = await agent.query("go", on_event=events.append)
        assert (reply.text, reply.steps) == ("Done indeed.\n\n[Reflection] It is untested.", 2)
        assert told(o, agent) == ["[Assessment]\nMind the pump.", "[Reflection]\nNo test ran."]
        assert reply.usage.model_calls == 5
        made = phases(o, agent)
        assert [(each.phase, each.by, each.did, each.note) for each in made] == [
            ("assess", "model", ("note",), "Mind the pump."),
            ("reflect", "model", ("again",), "No test ran."),
            ("reflect", "model", ("note",), "It is untested."),
        ]
        spent = sum(each.usage.input_tokens + each.usage.output_tokens for each in made if each.usage is not None)
        assert spent > 0
        folded = session(o, agent)
        assert folded.usage == reply.usage == (await agent.state()).usage
        shown = [(row.what, row.text, bool(row.tokens)) for row in audit(folder_file(o, agent))]
        assert ("assess", "Mind the pump.", True) in shown
        assert ("reflect", "It is untested.", True) in shown
    said = [(event.kind, event.name, event.text) for event in events if event.kind in ("assess", "reflect")]
    assert said[0] == ("assess", "scripted", "note: Mind the pump.")
    assert said[1] == ("reflect", "scripted", "again: No test ran.")


def folder_file(o: World, agent: AsyncSubagent) -> Path:
    """Return the agent's session file."""
    return Path(o.supervisor.tree.agents[agent.id].spec.folder) / "session.jsonl"


async def test_what_a_dead_process_paid_for_reflecting_counts(tmp_path: Path) -> None:
    """By what is on record: a turn without an end is known to have asked twice."""
    async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
        agent = await spawned(o, "Done.", {"error": "RateLimitError"}, beside=(AGAIN,))
        with pytest.raises(RateLimitError, match="RateLimitError"):
            await agent.query("go")
        assert (await agent.state()).usage.model_calls == 2
        assert session(o, agent).usage.model_calls == 2


async def test_an_agent_goes_on_as_often_as_it_may(tmp_path: Path) -> None:
    """However often it is found wanting; what is said last stands behind its reply."""
    async with opened(tmp_path, config=config(reflect=Reflect("model", max_continuations=2))) as o:
        agent = await spawned(o, "1", "2", "3", beside=(AGAIN,) * 3)
        reply = await agent.query("go")
        assert (reply.text, reply.steps) == ("3\n\n[Reflection] No test ran.", 3)
        assert [each.did for each in phases(o, agent)] == [("again",), ("again",), ("note",)]


async def test_legs_are_within_the_limits_of_the_turn(tmp_path: Path) -> None:
    """A turn that has no step left is not told to go on."""
    async with opened(tmp_path, config=config(reflect=Reflect("model", max_continuations=9))) as o:
        agent = await spawned(o, "1", "2", "3", beside=(AGAIN,) * 9, limits=Limits(max_turns=2))
        reply = await agent.query("go")
        assert (reply.steps, reply.stop_reason) == (2, "max_turns")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("I would rather not.", "no JSON object"),
        ('{"verdict": "again"}', "no note"),
        ({"text": DONE, "stop_reason": "max_tokens"}, "ended with 'max_tokens'"),
        ({"error": "BackendError", "message": "no such key"}, "no such key"),
    ],
)
async def test_a_reflection_that_fails_changes_nothing_and_is_on_record(tmp_path: Path, said: Any, why: str) -> None:
    """No verdict stands in for one that is not there."""
    async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
        agent = await spawned(o, "Done.", "Done twice.", beside=(said,))
        reply = await agent.query("go")
        assert (reply.text, reply.stop_reason, reply.steps) == ("Done.", "end_turn", 1)
        [made] = phases(o, agent)
        assert why in made.error
        assert made.did == ()


async def test_a_reflection_that_meets_the_deadline_leaves_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn was done by then: it ends as it had, and that nobody came to reflect upon it is on record."""

    async def ask(*_: Any) -> None:
        timeout.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    def until(brake: CancelToken, deadline: float) -> asyncio.Timeout:
        nonlocal timeout
        timeout = whole(brake, deadline)
        return timeout

    timeout, whole = asyncio.timeout(None), CancelToken.until
    monkeypatch.setattr(CancelToken, "until", until)
    monkeypatch.setattr(SideRequests, "ask", ask)
    async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
        agent = await spawned(o, "Done.", "ok")
        reply = await agent.query("go")
        assert (reply.text, reply.stop_reason) == ("Done.", "end_turn")
        [made] = phases(o, agent)
        assert (made.phase, made.did, made.error[:7]) == ("reflect", (), "cut off")


async def test_what_may_cost_more_than_it_may_is_not_asked(tmp_path: Path) -> None:
    """Its own bound holds before anything is sent."""
    async with opened(tmp_path, config=config(Assess("model", max_tokens=2000))) as o:
        agent = await spawned(o, "ok", beside=(ASSESSED,))
        reply = await agent.query("word " * 4000)
        assert reply.usage.model_calls == 1
        assert "max_tokens is 2,000" in phases(o, agent)[0].error


async def test_the_agents_budget_holds_for_phases_too(tmp_path: Path) -> None:
    """What is used up is not asked for, and the turn has its reply."""
    async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
        agent = await spawned(o, "Done.", beside=(AGAIN,), limits=Limits(max_model_calls=1))
        reply = await agent.query("go")
        assert (reply.text, reply.usage.model_calls) == ("Done.", 1)
        assert "model call" in phases(o, agent)[0].error.replace("_", " ")


async def test_rules_ask_nobody(tmp_path: Path) -> None:
    """A rule that fits narrows the turn and tells the agent; another lets it go on after a call that failed."""
    rules = (AssessRule("(?i)tidy", note="Keep new.txt.", plan=True),)
    async with opened(tmp_path, config=config(Assess("rule", rules=rules), Reflect("rule"))) as o:
        agent = await spawned(o, WRITE, READ, "Done.", "It is not there.", tools=["write_file", "read_file"])
        reply = await agent.query("Tidy up")
        assert (reply.text, reply.usage.model_calls) == ("It is not there.", 4)
        assert not (tmp_path / "new.txt").exists()
        said = told(o, agent)
        assert said[0].startswith("[Assessment]\nKeep new.txt.\nPlan first")
        assert "keeps it from this turn" in str(session(o, agent).messages)
        assert said[1].startswith("[Reflection]\nThe last call of this turn, read_file, failed")
        assert [(each.by, each.usage) for each in phases(o, agent)] == [("rule", None)] * 2


async def test_a_rule_that_does_not_fit_leaves_no_trace(tmp_path: Path) -> None:
    """Neither in the conversation nor on record."""
    rules = (AssessRule("never", note="x"),)
    async with opened(tmp_path, config=config(Assess("rule", rules=rules), Reflect("rule"))) as o:
        agent = await spawned(o, "ok")
        await agent.query("go")
        assert (phases(o, agent), told(o, agent)) == ([], [])


async def test_when_they_are_due(tmp_path: Path) -> None:
    """After failures alone, and each so-manieth turn alone."""
    note = (ReflectRule(note="!"),)
    async with opened(tmp_path, config=config(reflect=Reflect("rule", "on_failure", rules=note))) as o:
        agent = await spawned(o, "well", READ, "badly", tools=["read_file"])
        assert [(await agent.query("go")).text for _ in range(2)] == ["well", "badly\n\n[Reflection] !"]
    every = config(
        Assess("rule", "on_failure", rules=(AssessRule(note="?"),)), Reflect("rule", every_turns=2, rules=note)
    )
    async with opened(tmp_path / "other", config=every) as o:
        agent = await spawned(o, *"abc", limits=Limits(max_turns=1))
        assert [(await agent.query("go")).text for _ in range(3)] == ["a", "b\n\n[Reflection] !", "c"]
        assert not any("[Assessment]" in text for text in told(o, agent))
        agent = await spawned(o, READ, "a", tools=["read_file"], limits=Limits(max_turns=1))
        assert [(await agent.query("go")).stop_reason for _ in range(2)] == ["max_turns", "end_turn"]
        assert told(o, agent)[-1] == "[Assessment]\n?"


class TestHooks:
    """The stages around both phases, by their pipeline names."""

    async def test_around_an_assessment(self, tmp_path: Path) -> None:
        """Another note, fewer tools, another model that cannot be asked: told of, and the agent's own goes on."""
        seen: list[Any] = []
        async with opened(tmp_path, config=config(Assess("model"))) as o:

            @o.on("post-assess")
            def other(event: Any, _ctx: Any) -> Any:
                seen.append(event)
                return event.patch(note="Mind your step.", tools=("read_file",), model="nobody:none")

            agent = await spawned(o, WRITE, "ok", beside=(ASSESSED,), tools=["write_file", "read_file"])
            reply = await agent.query("go")
            assert reply.text == "ok"
            assert (seen[0].by, seen[0].note, seen[0].tools) == ("model", "Mind the pump.", ("write_file", "read_file"))
            assert told(o, agent) == ["[Assessment]\nMind your step."]
            assert "keeps it from this turn" in str(session(o, agent).messages)

    async def test_after_assess_comes_where_nothing_is_assessed_too(self, tmp_path: Path) -> None:
        """So that a hook there is never dead; by nobody, with nothing to say."""
        seen: list[Any] = []
        async with opened(tmp_path) as o:

            @o.on("after_assess")
            def note(event: Any, _ctx: Any) -> Any:
                seen.append((event.by, event.note))
                return event.patch(note="Be brief.")

            agent = await spawned(o, "ok")
            await agent.query("go")
            assert seen == [("", "")]
            assert told(o, agent) == ["[Assessment]\nBe brief."]
            assert phases(o, agent) == []

    async def test_abort_after_an_assessment(self, tmp_path: Path) -> None:
        """Nothing goes on record but the reply, and what was asked: that is paid for, and counts."""
        async with opened(tmp_path, config=config(Assess("model"))) as o:
            o.register_hook(lambda _event, _ctx: Abort("Not that."), "after_assess", name="no")
            agent = await spawned(o, "ok", beside=(ASSESSED,))
            reply = await agent.query("go")
            assert (reply.text, reply.stop_reason, reply.usage.model_calls) == ("Not that.", "aborted", 1)
            assert (told(o, agent), session(o, agent).messages) == ([], ())
            [made] = phases(o, agent)
            assert (made.phase, made.note) == ("assess", "Mind the pump.")
            assert made.usage == session(o, agent).usage == (await agent.state()).usage

    async def test_a_blocked_reflection_is_not_made(self, tmp_path: Path) -> None:
        """Nobody is asked; what the hook was told is what was measured."""
        seen: list[Any] = []
        async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:

            @o.on("pre-reflect")
            def no(event: Any, _ctx: Any) -> Any:
                seen.append((event.text, event.tool_calls, event.failed))
                return Block("enough")

            agent = await spawned(o, READ, "Done.", beside=(AGAIN,), tools=["read_file"])
            assert (await agent.query("go")).usage.model_calls == 2
            assert (seen, phases(o, agent)) == ([("Done.", 1, 1)], [])

    async def test_a_blocked_reflection_says_nothing(self, tmp_path: Path) -> None:
        """What was found is dropped; that it was asked for is on record and paid for."""
        async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
            o.register_hook(lambda _event, _ctx: Block("no"), "after_reflect", name="no")
            agent = await spawned(o, "Done.", beside=(AGAIN,))
            reply = await agent.query("go")
            assert (reply.text, reply.usage.model_calls) == ("Done.", 2)
            assert [(each.note, each.did) for each in phases(o, agent)] == [("", ("done",))]

    async def test_a_reflection_can_be_told_more_and_changed(self, tmp_path: Path) -> None:
        """Its instructions are asked with; its note and what becomes of it are the hook's then."""
        asked: list[str] = []
        async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
            o.register_hook(lambda event, _ctx: event.patch(instructions="Be strict."), "before_reflect", name="strict")

            @o.on("post-reflect")
            def other(event: Any, _ctx: Any) -> Any:
                asked.append(event.by)
                if not event.note:
                    return None
                return event.patch(note=f"{event.note} Run it.", again=not event.again)

            agent = await spawned(o, "1", "2", beside=(NOTED, DONE))
            reply = await agent.query("go")
            assert asked == ["model", "model"]
            assert told(o, agent) == ["[Reflection]\nIt is untested. Run it."]
            assert reply.text == "2"


def test_all_twelve_names_of_a_pipeline_are_names_of_stages() -> None:
    """Each of them is a stage that a turn comes to."""
    parts = ("assess", "reason", "llm", "tool", "reflect", "output")
    assert ALIASES.keys() == {f"{side}-{part}" for side in ("pre", "post") for part in parts}


def test_who_watches_at_a_terminal_sees_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, beside the text: which phase, by whom, what came of it."""
    show = TurnPrinter()
    show.event({"n": 1, "kind": "assess", "name": "rule", "text": "plan: Keep backups."})
    show.event({"n": 2, "kind": "reflect", "name": "scripted", "text": "again: No test ran."})
    assert capsys.readouterr().err.splitlines() == [
        "assess by rule: plan: Keep backups.",
        "reflect by scripted: again: No test ran.",
    ]
