"""Assessments and reflections of running agents: their effects, their records and their costs."""

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
from orch_worker.session.session_reader import read_session
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
    """Return an agent whose model answers `said` in the conversation and `beside` to side requests."""
    return await o.spawn("work", backend=ScriptedBackend(said, beside), **options)


def session(o: World, agent: AsyncSubagent) -> SessionState:
    """Return the session in the agent's file."""
    return read_session(Path(o.supervisor.tree.agents[agent.id].spec.folder))


def phases(o: World, agent: AsyncSubagent) -> list[PhaseEntry]:
    """Return the recorded phases of the agent."""
    return [entry for entry in session(o, agent).entries if isinstance(entry, PhaseEntry)]


def phase_notes(o: World, agent: AsyncSubagent) -> list[str]:
    """Return the notes of phases in the agent's conversation."""
    messages = (entry.message for entry in session(o, agent).entries if isinstance(entry, MessageEntry))
    texts = [text_of(message) for message in messages if message.role == "user"]
    return [text for text in texts if text.startswith(("[Assessment]", "[Reflection]"))]


async def test_phases_are_off_by_default(tmp_path: Path) -> None:
    """A turn makes one request and records no phase."""
    async with opened(tmp_path) as o:
        agent = await spawned(o, "ok", beside=(AGAIN,))
        reply = await agent.query("go")
        assert (reply.usage.model_calls, reply.steps, phases(o, agent)) == (1, 1, [])


async def test_model_assesses_and_reflects_at_its_cost(tmp_path: Path) -> None:
    """The assessment's note is delivered, one more step runs, and the second reflection's note follows the reply."""
    events: list[TurnEvent] = []
    async with opened(tmp_path, config=config(Assess("model"), Reflect("model"))) as o:
        agent = await spawned(o, "Done.", "Done indeed.", beside=(ASSESSED, AGAIN, NOTED))
        reply = await agent.query("go", on_event=events.append)
        assert (reply.text, reply.steps) == ("Done indeed.\n\n[Reflection] It is untested.", 2)
        assert phase_notes(o, agent) == ["[Assessment]\nMind the pump.", "[Reflection]\nNo test ran."]
        assert reply.usage.model_calls == 5
        made = phases(o, agent)
        assert [(each.phase, each.by, each.actions, each.note) for each in made] == [
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
    listed = [(event.kind, event.name, event.text) for event in events if event.kind in ("assess", "reflect")]
    assert listed[0] == ("assess", "scripted", "note: Mind the pump.")
    assert listed[1] == ("reflect", "scripted", "again: No test ran.")


def folder_file(o: World, agent: AsyncSubagent) -> Path:
    return Path(o.supervisor.tree.agents[agent.id].spec.folder) / "session.jsonl"


async def test_usage_of_reflection_in_a_failed_turn_counts(tmp_path: Path) -> None:
    """The requests of the failed turn, including the reflection, are in the agent's usage and in its session."""
    async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
        agent = await spawned(o, "Done.", {"error": "RateLimitError"}, beside=(AGAIN,))
        with pytest.raises(RateLimitError, match="RateLimitError"):
            await agent.query("go")
        assert (await agent.state()).usage.model_calls == 2
        assert session(o, agent).usage.model_calls == 2


async def test_reflection_continues_the_turn_up_to_its_limit(tmp_path: Path) -> None:
    """After the last continuation, the note follows the reply."""
    async with opened(tmp_path, config=config(reflect=Reflect("model", max_continuations=2))) as o:
        agent = await spawned(o, "1", "2", "3", beside=(AGAIN,) * 3)
        reply = await agent.query("go")
        assert (reply.text, reply.steps) == ("3\n\n[Reflection] No test ran.", 3)
        assert [each.actions for each in phases(o, agent)] == [("again",), ("again",), ("note",)]


async def test_continuation_stays_within_the_limits_of_the_turn(tmp_path: Path) -> None:
    """A turn without steps left is not continued."""
    async with opened(tmp_path, config=config(reflect=Reflect("model", max_continuations=9))) as o:
        agent = await spawned(o, "1", "2", "3", beside=(AGAIN,) * 9, limits=Limits(max_turns=2))
        reply = await agent.query("go")
        assert (reply.steps, reply.stop_reason) == (2, "max_turns")


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ("I would rather not.", "no JSON object"),
        ('{"verdict": "again"}', "needs a note"),
        ({"text": DONE, "stop_reason": "max_tokens"}, "ended with 'max_tokens'"),
        ({"error": "BackendError", "message": "no such key"}, "no such key"),
    ],
)
async def test_failed_reflection_is_recorded_and_changes_nothing(tmp_path: Path, expected: Any, why: str) -> None:
    """An invalid verdict has no effect. Its record contains the reason."""
    async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
        agent = await spawned(o, "Done.", "Done twice.", beside=(expected,))
        reply = await agent.query("go")
        assert (reply.text, reply.stop_reason, reply.steps) == ("Done.", "end_turn", 1)
        [made] = phases(o, agent)
        assert why in made.error
        assert made.actions == ()


async def test_reflection_at_the_deadline_leaves_the_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn ends normally, and the record contains the timeout."""

    async def ask(*_: Any) -> None:
        timeout.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    def until(brake: CancelToken, deadline: float) -> asyncio.Timeout:
        nonlocal timeout
        timeout = whole(brake, deadline)
        return timeout

    timeout, whole = asyncio.timeout(None), CancelToken.until_deadline
    monkeypatch.setattr(CancelToken, "until_deadline", until)
    monkeypatch.setattr(SideRequests, "ask", ask)
    async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
        agent = await spawned(o, "Done.", "ok")
        reply = await agent.query("go")
        assert (reply.text, reply.stop_reason) == ("Done.", "end_turn")
        [made] = phases(o, agent)
        assert (made.phase, made.actions, made.error[:11]) == ("reflect", (), "interrupted")


async def test_phase_request_above_its_cost_limit_is_not_made(tmp_path: Path) -> None:
    """The limit of the phase is checked before the request."""
    async with opened(tmp_path, config=config(Assess("model", max_tokens=2000))) as o:
        agent = await spawned(o, "ok", beside=(ASSESSED,))
        reply = await agent.query("word " * 4000)
        assert reply.usage.model_calls == 1
        assert "max_tokens is 2,000" in phases(o, agent)[0].error


async def test_exhausted_budget_skips_phases(tmp_path: Path) -> None:
    """The turn ends with its reply, and the record names the exhausted limit."""
    async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
        agent = await spawned(o, "Done.", beside=(AGAIN,), limits=Limits(max_model_calls=1))
        reply = await agent.query("go")
        assert (reply.text, reply.usage.model_calls) == ("Done.", 1)
        assert "model call" in phases(o, agent)[0].error.replace("_", " ")


async def test_rules_assess_and_reflect_without_a_model(tmp_path: Path) -> None:
    """One rule restricts the tools of the turn with a note, and another continues the turn after a failed call."""
    rules = (AssessRule("(?i)tidy", note="Keep new.txt.", plan=True),)
    async with opened(tmp_path, config=config(Assess("rule", rules=rules), Reflect("rule"))) as o:
        agent = await spawned(o, WRITE, READ, "Done.", "It is not there.", tools=["write_file", "read_file"])
        reply = await agent.query("Tidy up")
        assert (reply.text, reply.usage.model_calls) == ("It is not there.", 4)
        assert not (tmp_path / "new.txt").exists()
        found = phase_notes(o, agent)
        assert found[0].startswith("[Assessment]\nKeep new.txt.\nPlan first")
        assert "disabled it for this turn" in str(session(o, agent).messages)
        assert found[1].startswith("[Reflection]\nThe last call of this turn, read_file, failed")
        assert [(each.by, each.usage) for each in phases(o, agent)] == [("rule", None)] * 2


async def test_rule_without_a_match_leaves_no_trace(tmp_path: Path) -> None:
    """The conversation has no note, and no phase is recorded."""
    rules = (AssessRule("never", note="x"),)
    async with opened(tmp_path, config=config(Assess("rule", rules=rules), Reflect("rule"))) as o:
        agent = await spawned(o, "ok")
        await agent.query("go")
        assert (phases(o, agent), phase_notes(o, agent)) == ([], [])


async def test_reflection_is_due_after_failures_or_every_nth_turn(tmp_path: Path) -> None:
    """With `on_failure`, only turns with a failure are reflected. With `every_turns=2`, every second turn is."""
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
        assert not any("[Assessment]" in text for text in phase_notes(o, agent))
        agent = await spawned(o, READ, "a", tools=["read_file"], limits=Limits(max_turns=1))
        assert [(await agent.query("go")).stop_reason for _ in range(2)] == ["max_turns", "end_turn"]
        assert phase_notes(o, agent)[-1] == "[Assessment]\n?"


class TestHooks:
    """Hooks before and after both phases, under their pipeline names."""

    async def test_hook_changes_note_tools_and_model_of_an_assessment(self, tmp_path: Path) -> None:
        """If the model of the patch is not available, the agent's own model answers."""
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
            assert phase_notes(o, agent) == ["[Assessment]\nMind your step."]
            assert "disabled it for this turn" in str(session(o, agent).messages)

    async def test_after_assess_runs_without_an_assessment(self, tmp_path: Path) -> None:
        """The event has no author and no note."""
        seen: list[Any] = []
        async with opened(tmp_path) as o:

            @o.on("after_assess")
            def note(event: Any, _ctx: Any) -> Any:
                seen.append((event.by, event.note))
                return event.patch(note="Be brief.")

            agent = await spawned(o, "ok")
            await agent.query("go")
            assert seen == [("", "")]
            assert phase_notes(o, agent) == ["[Assessment]\nBe brief."]
            assert phases(o, agent) == []

    async def test_abort_after_an_assessment_records_only_the_reply(self, tmp_path: Path) -> None:
        """The usage of the assessment counts."""
        async with opened(tmp_path, config=config(Assess("model"))) as o:
            o.register_hook(lambda _event, _ctx: Abort("Not that."), "after_assess", name="no")
            agent = await spawned(o, "ok", beside=(ASSESSED,))
            reply = await agent.query("go")
            assert (reply.text, reply.stop_reason, reply.usage.model_calls) == ("Not that.", "aborted", 1)
            assert (phase_notes(o, agent), session(o, agent).messages) == ([], ())
            [made] = phases(o, agent)
            assert (made.phase, made.note) == ("assess", "Mind the pump.")
            assert made.usage == session(o, agent).usage == (await agent.state()).usage

    async def test_blocked_before_reflect_makes_no_request(self, tmp_path: Path) -> None:
        """The hook receives the text, the number of calls and the number of failures."""
        seen: list[Any] = []
        async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:

            @o.on("pre-reflect")
            def no(event: Any, _ctx: Any) -> Any:
                seen.append((event.text, event.tool_calls, event.failed))
                return Block("enough")

            agent = await spawned(o, READ, "Done.", beside=(AGAIN,), tools=["read_file"])
            assert (await agent.query("go")).usage.model_calls == 2
            assert (seen, phases(o, agent)) == ([("Done.", 1, 1)], [])

    async def test_blocked_after_reflect_drops_the_note(self, tmp_path: Path) -> None:
        """The request is recorded and charged."""
        async with opened(tmp_path, config=config(reflect=Reflect("model"))) as o:
            o.register_hook(lambda _event, _ctx: Block("no"), "after_reflect", name="no")
            agent = await spawned(o, "Done.", beside=(AGAIN,))
            reply = await agent.query("go")
            assert (reply.text, reply.usage.model_calls) == ("Done.", 2)
            assert [(each.note, each.actions) for each in phases(o, agent)] == [("", ("done",))]

    async def test_hook_instructs_and_changes_a_reflection(self, tmp_path: Path) -> None:
        """The patched note reaches the agent, and the patched verdict decides about the continuation."""
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
            assert phase_notes(o, agent) == ["[Reflection]\nIt is untested. Run it."]
            assert reply.text == "2"


def test_all_twelve_pipeline_names_are_aliases_of_stages() -> None:
    """Each of the six parts has a name before and a name after it."""
    parts = ("assess", "reason", "llm", "tool", "reflect", "output")
    assert ALIASES.keys() >= {f"{side}-{part}" for side in ("pre", "post") for part in parts}


def test_phases_are_shown_at_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A line on stderr contains the phase, its author and its result."""
    show = TurnPrinter()
    show.event({"n": 1, "kind": "assess", "name": "rule", "text": "plan: Keep backups."})
    show.event({"n": 2, "kind": "reflect", "name": "scripted", "text": "again: No test ran."})
    assert capsys.readouterr().err.splitlines() == [
        "assess by rule: plan: Keep backups.",
        "reflect by scripted: again: No test ran.",
    ]
