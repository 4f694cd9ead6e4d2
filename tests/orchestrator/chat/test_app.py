"""A conversation: what is typed becomes prompts, steering, answers; events become lines; leaving ends nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from orch.client.failure import CommandError
from orch_protocol.core.messages import assistant, user
from orch_protocol.wire.watch_events import TurnEnded
from orch_protocol.wire.worker_messages import TurnEvent, TurnSoFar
from orch_worker.conversation.framing import CLOSING, OPENING
from orchestrator.chat.chat_double import AGENT, Talk, event, question
from orchestrator.daemon_double import REPLY

CHILD = AGENT | {"id": "kid", "name": "kim", "parent_id": "abc", "seq": 2}


async def test_a_prompt_is_asked_and_its_turn_is_shown() -> None:
    """What is said streams; the answer counts as taken; the prompt is shown once."""
    talk = await Talk().begin()
    await talk.chat.take("go\non")
    talk.began()
    talk.chat.event(event(1, "text", "one\ntwo"))
    assert talk.shown() == ["> go", "  on", "one", "two"]
    talk.now = 3.0
    assert talk.chat.working == 3.0
    talk.chat.event(event(2, "message", "one\ntwo", step=1))
    talk.chat.event(event(3, "tool_call", '{"path": "x"}', name="read_file"))
    talk.chat.event(event(4, "tool_result", "x\x1b[2J", name="read_file", is_error=True))
    await talk.ended()
    assert talk.shown() == ["two", '-> read_file {"path": "x"}', "<- read_file error: x\\x1b[2J"]
    assert talk.chat.working is None
    assert [params["prompt"] for params in talk.wire.of("submit")] == ["go\non"]
    assert talk.wire.of("collect") == [{"ref": "abc", "timeout": 0.0}]


async def test_what_is_typed_while_it_works_steers_it() -> None:
    """Or is a follow-up; and what came too late for the turn is asked afterwards."""
    talk = await Talk().begin()
    await talk.chat.take("go")
    talk.began()
    await talk.chat.take("left")
    await talk.chat.take("then right", follow_up=True)
    assert [(each["text"], each["follow_up"]) for each in talk.wire.of("steer")] == [
        ("left", False),
        ("then right", True),
    ]
    talk.wire.answers["queue"] = {"waiting": [{"id": "s1", "text": "left"}, {"id": "other", "text": "not mine"}]}
    talk.wire.answers["clear_queue"] = {"waiting": [{"id": "s1", "text": "left"}]}
    await talk.ended()
    assert talk.wire.of("clear_queue") == [{"ref": "abc", "ids": ["s1"]}]
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["go", "left"]


async def test_prompts_reach_the_agent_in_the_order_in_which_they_were_typed() -> None:
    """One that is still on its way is not overtaken by the next."""
    talk = await Talk().begin()
    talk.wire.slow["submit"] = asyncio.Event()
    typed = [asyncio.ensure_future(talk.chat.take(each)) for each in ("one", "two")]
    for _ in range(5):
        await asyncio.sleep(0)
    assert talk.wire.of("steer") == []
    talk.wire.slow["submit"].set()
    await asyncio.gather(*typed)
    said = [
        (name, params.get("prompt") or params["text"])
        for name, params in talk.wire.asked
        if name in ("submit", "steer")
    ]
    assert said == [("submit", "one"), ("steer", "two")]


async def test_an_agent_that_was_asked_meanwhile_is_steered() -> None:
    """Of two who ask at the same moment one would be refused."""
    talk = await Talk().begin()
    talk.wire.answers["submit"] = CommandError("AgentBusyError", "at work")
    await talk.chat.take("go")
    assert talk.wire.of("steer")[0]["text"] == "go"


async def test_a_turn_that_somebody_else_asked_for_is_shown() -> None:
    """With what was asked and by whom, and its answer is left to them."""
    talk = await Talk().begin()
    talk.began(prompt="from afar\x9b2J", request_id=None)
    await talk.ended()
    talk.began(prompt="done", asker="boss")
    await talk.ended()
    talk.began(prompt="news", from_inbox=True)
    await talk.ended()
    said = [line for line in talk.shown() if "42" not in line]
    assert said == ["asked elsewhere: from afar\\x9b2J", "agent boss asks: done", "those below it tell: news"]
    assert talk.wire.of("collect") == []


async def test_who_comes_back_sees_the_conversation_and_the_turn_under_way() -> None:
    """The end of what was said, the turn with its response as far as it has come; then that goes on."""
    talk = Talk()
    folder = user(f"{OPENING}README.md{CLOSING}")
    first = user("Task: t\n\nQuery: what is it?")
    steered = user("[Steering]\nlong ago")
    cut = user("[The turn before this one was cut short; what it recorded is above.]\n\nlong ago")
    talk.wire.said = [user("older"), steered, cut, *[user("long ago")] * 15, folder, first, assistant("It is.")]
    await talk.chat.meet("1")
    assert talk.shown()[1:] == ["(1 message before these)", *["> long ago"] * 17, "> what is it?", "It is."]
    talk.began(prompt="and now?", met=True)
    call, text = TurnEvent(5, "tool_call", "{}", "bash"), TurnEvent(9, "text", "I am")
    talk.chat.event(msgspec.to_builtins(TurnSoFar("q", (call, text), n=9, lost=2)))
    talk.chat.event(event(10, "text", " here"))
    lines = ["> and now?", "(it is at work on that)", "(2 events of this turn before these)", "-> bash {}", "I am here"]
    assert talk.shown() == lines
    talk.chat.event(event(11, "message", "I am here", step=1))
    await talk.ended()
    assert "I am here" not in "".join(talk.shown()).replace("I am here", "", 1)


async def test_text_streamed_before_a_cancel_stays_on_the_screen() -> None:
    """It is shown once, and below it how the turn ended."""
    talk = await Talk().begin()
    await talk.chat.take("go")
    talk.began()
    talk.chat.event(event(1, "text", "Once upon"))
    await talk.chat.interrupt()
    text = "Once upon\n\n[The turn was cancelled.]"
    await talk.ended(reply=REPLY | {"text": text, "steps": 0, "stop_reason": "cancelled"})
    said = talk.shown()
    assert said.count("Once upon") == 1
    assert "the turn ended early: cancelled" in said


async def test_ctrl_c_ends_the_turn_and_then_at_once() -> None:
    """By the same services as the verbs."""
    talk = await Talk().begin()
    talk.began(request_id=None)
    assert await talk.chat.interrupt() == "cancel"
    assert await talk.chat.interrupt() == "kill"
    assert talk.wire.of("cancel") == [{"ref": "abc"}, {"ref": "abc", "hard": True}]
    talk.chat.event(question())
    talk.chat.event(question("q2", agent="kim", agent_id="kid"))
    await talk.ended(reply=None, error={"type": "AgentDiedError", "message": "it was ended"})
    lines = talk.shown()
    assert "AgentDiedError: it was ended" in lines
    assert lines[-6:][0] == "agent: kim (kid, depth 1)"
    await talk.chat.take("n")
    assert talk.chat.asks == ""
    assert talk.chat.failed


@pytest.mark.parametrize(("said", "ended"), [("", []), ("e", [{"refs": ["kid"]}])])
async def test_leaving_asks_about_those_that_live(said: str, ended: list[Any]) -> None:
    """They are kept or ended; to stay is possible too."""
    talk = await Talk().begin()
    talk.wire.answers["list"] = [AGENT, CHILD]
    await talk.chat.leave()
    assert not talk.chat.done.is_set()
    assert "  2 kim: idle" in talk.shown()
    await talk.chat.take("what?")
    await talk.chat.take("s")
    assert not talk.chat.done.is_set()
    await talk.chat.leave()
    await talk.chat.take(said)
    assert talk.chat.done.is_set()
    assert talk.wire.of("kill") == ended
    assert talk.shown()[-1] == "agent 1 (n) is kept: orch chat 1 comes back to it"


@pytest.mark.parametrize(("fresh", "kept"), [(True, []), (False, ["abc"])])
async def test_an_agent_that_was_made_for_nothing_is_not_kept(fresh: bool, kept: list[str]) -> None:
    """Who looked in and left leaves nothing behind; an agent that was there before stays."""
    talk = Talk()
    talk.wire.answers["state"] = AGENT | {"queries": 0}
    await talk.chat.meet("1", fresh=fresh)
    await talk.chat.leave()
    assert talk.chat.done.is_set()
    assert talk.wire.of("kill") == ([] if kept else [{"refs": ["abc"]}])


async def test_a_terminal_that_is_gone_leaves_no_agent_that_was_asked_nothing() -> None:
    """Nobody was there to leave; nor is one left by who switches to another. One that has something to tell stays."""
    talk = await Talk().begin()
    talk.wire.executes("status")
    await talk.chat.take("/status")
    await talk.chat.gone()
    assert talk.wire.of("kill") == [{"refs": ["abc"]}]
    for there in ({"messages": [{}]}, {"agent": AGENT | {"queries": 0, "title": "pumps"}}, {"agent": AGENT}):
        talk = Talk()
        talk.wire.answers["show"] |= there
        await talk.begin()
        await talk.chat.gone()
        assert talk.wire.of("kill") == []
    talk = await Talk().begin()
    talk.wire.answers["state"] = AGENT | {"id": "kid"}
    talk.wire.executes("switch", kind="switch", agent="kid")
    await talk.chat.take("/switch kid")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert talk.wire.of("kill") == [{"refs": ["abc"]}]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_typed_behind_a_switch_is_for_whom_it_leads_to(fails: bool) -> None:
    """However long that takes; did it lead nowhere, nobody else is told, and the line is there to be said again."""
    talk = await Talk().begin()
    talk.wire.answers["commands"] |= {
        "commands": [{"name": "use", "aliases": ["switch"], "moves": True}],
        "digest": "2",
    }
    await talk.chat.commands.load("abc")
    talk.wire.executes("switch", kind="switch", agent="kid")
    talk.wire.slow["execute"] = asyncio.Event()
    typed = [asyncio.ensure_future(talk.chat.take(each)) for each in ("/switch kid", "hello kid", "/status")]
    await asyncio.sleep(0)
    if fails:
        talk.wire.answers["execute"] = CommandError("AgentGoneError", "there is no kid")
    else:
        talk.wire.answers["state"] = AGENT | {"id": "kid"}
    talk.wire.slow["execute"].set()
    await asyncio.gather(*typed)
    asked = [(params["ref"], params["prompt"]) for params in talk.wire.of("submit")]
    assert asked == ([] if fails else [("kid", "hello kid")])
    assert talk.chat.draft == ("hello kid\n/status" if fails else "")
    assert [params["ref"] for params in talk.wire.of("execute")] == (["abc"] if fails else ["abc", "kid"])


async def test_an_agent_that_was_ended_elsewhere_is_not_called_kept() -> None:
    """How it answers again is said."""
    talk = await Talk().begin()
    talk.wire.answers["state"] = AGENT | {"status": "killed"}
    await talk.chat.leave()
    assert talk.shown()[-1] == "agent 1 (n) was ended: orch resume 1 lets it answer again"


async def test_a_daemon_that_ended_is_said_and_the_next_prompt_goes_on() -> None:
    """It is watched anew then."""
    talk = await Talk().begin()
    await talk.chat.take("go")
    talk.began()
    talk.chat.event(event(1, "text", "half a li"))
    talk.wire.there = False
    talk.chat._lost(CommandError("DaemonGone", "the daemon ended"))
    assert talk.chat.working is None
    assert talk.shown()[1:3] == ["half a li", "DaemonGone: the daemon ended"]
    await talk.chat.take("again")
    assert talk.shown() == ["> again"]
    assert len(talk.wire.watched) == 2
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["go", "again"]
    talk.began(met=True)  # the watch came a moment later than what was asked
    talk.chat.event(event(1, "text", "whole"))
    assert talk.shown() == ["whole"]


async def test_a_daemon_that_ended_asks_nothing() -> None:
    """What is typed then is a prompt, and no answer to what nobody waits for."""
    talk = await Talk().begin()
    talk.began(request_id=None)
    talk.chat.event(question())
    talk.chat._lost(CommandError("DaemonGone", "the daemon ended"))
    assert not talk.chat.asks
    assert talk.chat.failed


@pytest.mark.parametrize("works", [False, True])
async def test_a_daemon_that_does_not_answer_keeps_nobody_here(works: bool) -> None:
    """Who leaves has left; that nothing was ended is said."""
    talk = await Talk().begin()
    if works:
        talk.began(request_id=None)
    for method in ("list", "state", "cancel"):
        talk.wire.answers[method] = CommandError("DaemonSilent", "it says nothing")
    await talk.chat.leave()
    if works:
        await talk.chat.take("end")
    assert talk.chat.done.is_set()
    assert talk.shown()[-1] == "DaemonSilent: it says nothing"


async def test_what_was_heard_too_late_and_is_refused_is_there_again() -> None:
    """It is taken from the agent's queue to be asked: when that is refused it stands in the line."""
    talk = await Talk().begin()
    await talk.chat.take("go")
    talk.began()
    await talk.chat.take("and the valve")
    waiting = {"waiting": [{"id": "s1", "text": "and the valve"}]}
    talk.wire.answers |= {"queue": waiting, "clear_queue": waiting}
    talk.wire.answers["submit"] = CommandError("BudgetExceededError", "no dollar is left")
    await talk.ended()
    assert talk.chat.draft == "and the valve"
    assert "BudgetExceededError: no dollar is left" in talk.shown()


async def test_ctrl_c_forgets_lines_that_are_taken_as_they_come() -> None:
    """Else the only way out would be to say them."""
    talk = await Talk().begin()
    talk.wire.executes("paste", kind="paste")
    await talk.chat.take("/paste")
    await talk.chat.take("one")
    assert await talk.chat.interrupt(typed=True) == "clear"
    assert not talk.chat.asks
    await talk.chat.take("two")
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["two"]


async def test_what_goes_wrong_is_said_and_the_talk_goes_on() -> None:
    """As when the agent was killed."""
    talk = await Talk().begin()
    talk.wire.answers["submit"] = CommandError("AgentGoneError", "it was killed: orch resume 1")
    await talk.chat.take("go")
    assert talk.shown()[-1] == "AgentGoneError: it was killed: orch resume 1"
    assert talk.chat.working is None


async def test_commands_are_executed_in_the_session() -> None:
    """What comes of one is shown; what only looks like one is said."""
    talk = await Talk().begin()
    assert talk.chat.commands.known == {"kill": "end an agent", "end": "end an agent"}
    talk.wire.executes("agents", "a table\x1b[2J")
    await talk.chat.take("/agents --all")
    assert talk.shown() == ["> /agents --all", "a table\\x1b[2J"]
    assert talk.wire.of("execute") == [{"ref": "abc", "text": "/agents --all"}]
    talk.wire.executes("diff", "--- a\n+new\n")
    await talk.chat.take("/diff")
    assert talk.sheet.take()[1:] == [[("strong", "--- a")], [("add", "+new")]]
    await talk.chat.take("/etc/passwd is a path")
    await talk.chat.take("//status is said")
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["/etc/passwd is a path"]
    assert talk.wire.of("steer")[0]["text"] == "/status is said"


async def test_widgets_of_extensions_are_kept_up_to_date() -> None:
    """Each is asked when the talk begins and after each turn; nothing in what it says is obeyed."""
    talk = Talk()
    widgets = [{"name": "left", "command": "/todo --count", "title": "to do", "place": "status", "source": "todo"}]
    widgets.append(widgets[0] | {"name": "log", "title": "", "place": "panel"})
    talk.wire.answers["commands"] |= {"widgets": widgets}
    talk.wire.executes("todo", "3\x1b[2J\nmore")
    await talk.begin()
    talk.began(request_id=None)
    await talk.ended()
    assert talk.chat.commands.widgets == {"status": ["to do: 3\\x1b[2J more"], "panel": ["log: 3\\x1b[2J more"]}
    assert "to do: 3" in "".join(text for _, text in talk.chat.bar(100))


async def test_help_tells_of_keys_too() -> None:
    """Which belong to the console, while commands belong to the session."""
    talk = await Talk().begin()
    talk.wire.executes("help", "/kill ID")
    await talk.chat.take("/help")
    text = "\n".join(talk.shown())
    assert "Alt-Enter" in text
    assert "/kill ID" in text


async def test_effects_of_commands_are_done() -> None:
    """To ask, to edit, to copy, to take many lines, to talk to another agent, and to leave."""
    talk = await Talk().begin()
    talk.wire.executes("review", kind="ask", text="review this")
    await talk.chat.take("/review")
    assert talk.wire.of("submit")[0]["prompt"] == "review this"
    await talk.ended()
    talk.wire.executes("branch", kind="edit", text="again")
    await talk.chat.take("/branch e1")
    assert talk.chat.draft == "again"
    talk.wire.executes("copy", kind="copy", text="42")
    await talk.chat.take("/copy")
    assert talk.chat.copied == "42"
    talk.wire.executes("paste", kind="paste", text="one")
    await talk.chat.take("/paste one")
    assert "/end" in talk.chat.asks
    for line in ("/two", "", "/end"):
        await talk.chat.take(line)
    assert talk.wire.of("submit")[1]["prompt"] == "one\n/two\n"
    await talk.ended()
    talk.wire.executes("plan", kind="switch", agent="kid", text="plan it")
    talk.wire.answers["state"] = CHILD
    await talk.chat.take("/plan plan it")
    assert (talk.chat.id, talk.wire.watched[-1]["ref"]) == ("kid", "kid")
    assert (talk.wire.of("submit")[2]["ref"], talk.wire.of("submit")[2]["prompt"]) == ("kid", "plan it")
    await talk.ended()
    talk.wire.executes("quit", kind="quit")
    await talk.chat.take("/quit")
    assert talk.chat.done.is_set()


async def test_ctrl_c_waits_for_no_command() -> None:
    """One that takes long is dropped, and the chat goes on."""
    talk = await Talk().begin()
    talk.wire.slow["execute"] = asyncio.Event()
    task = asyncio.create_task(talk.chat.take("!sleep 100"))
    while not talk.chat.commands.running:  # noqa: ASYNC110  # gives way
        await asyncio.sleep(0)
    assert await talk.chat.interrupt() == "stop"
    assert talk.wire.dropped[0].is_set()
    talk.wire.answers["execute"] = CommandError("Interrupted", "not waited for")
    talk.wire.slow["execute"].set()
    await task
    assert not talk.chat.commands.running
    assert talk.shown()[-1] == "Interrupted: not waited for"


async def test_a_paste_that_is_gone_is_not_said() -> None:
    """It stays in the line, to be pasted anew."""
    talk = await Talk().begin()
    typed = "look: [pasted 0123abcd: 9,999 characters, 1 line]"
    await talk.chat.take(typed)
    assert talk.wire.of("submit") == []
    assert talk.chat.draft == typed


async def test_who_is_left_at_work_is_asked_for_and_its_end_is_told() -> None:
    """A call of its that needs approval is not denied because nobody looks on, nor lost by the next switch."""
    talk = await Talk().begin()
    await talk.chat.take("go")
    talk.began()
    talk.wire.answers["state"] = CHILD
    talk.wire.executes("switch", kind="switch", agent="kid")
    await talk.chat.take("/switch kid")
    [beside] = talk.wire.siblings
    assert beside.watched == [{"ref": "abc", "approve": True}]
    talk.shown()
    beside.tell(question())
    assert "agent: n (abc, depth 1)" in talk.shown()
    await talk.chat.take("y")
    assert talk.wire.of("answer")[0]["allow"] is True
    beside.tell(question("q2", agent_id="its child"))
    talk.wire.answers["state"] = AGENT | {"id": "third"}
    await talk.chat.meet("third")
    assert "allow it?" in talk.chat.asks
    beside.tell(msgspec.to_builtins(TurnEnded("q")) | {"reply": REPLY})
    assert not talk.chat.asks
    assert talk.shown()[-1] == "n has answered; /switch 1 goes there"
    assert not beside.there
    talk.wire.answers["state"] = AGENT
    talk.wire.executes("switch", kind="switch", agent="abc")
    await talk.chat.take("/switch 1")
    assert len(talk.wire.siblings) == 1


async def test_a_switch_that_fails_leaves_the_talk_with_whom_it_was() -> None:
    """Whatever it fails at: the agent that is watched is the one that hears what is typed."""
    talk = await Talk().begin()
    talk.wire.executes("switch", kind="switch", agent="kid")
    watched = len(talk.wire.watched)
    for method in ("state", "commands"):
        before, talk.wire.answers[method] = talk.wire.answers[method], CommandError("AgentGoneError", "it was pruned")
        await talk.chat.take("/switch kid")
        talk.wire.answers[method] = before
        assert talk.shown()[-1] == "AgentGoneError: it was pruned"
        assert (talk.chat.id, len(talk.wire.watched)) == ("abc", watched)
