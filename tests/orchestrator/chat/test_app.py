"""The chat: input becomes prompts, steering and answers; events become lines; leaving keeps agents."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from orch.client.failure import CommandError
from orch_protocol.core.messages import assistant, user
from orch_protocol.core.worktrees import WorktreeReport
from orch_protocol.wire.watch_events import TurnEnded
from orch_protocol.wire.worker_messages import TurnEvent, TurnSoFar
from orch_worker.conversation.framing import CLOSING, OPENING
from orchestrator.chat.chat_double import AGENT, Talk, event, question
from orchestrator.daemon_double import REPLY

CHILD = AGENT | {"id": "kid", "name": "kim", "parent_id": "abc", "seq": 2}


async def test_prompt_is_sent_and_its_turn_shown() -> None:
    """The prompt is shown once, the response is streamed, and the answer is collected."""
    talk = await Talk().begin()
    await talk.chat.process_input("go\non")
    talk.began()
    talk.chat.event(event(1, "text", "one\ntwo"))
    assert talk.shown() == ["> go", "  on", "one", "two"]
    talk.now = 3.0
    assert talk.chat.working == 3.0
    talk.chat.event(event(2, "message", "one\ntwo", step=1))
    talk.chat.event(event(3, "tool_call", '{"path": "x"}', name="read_file"))
    talk.chat.event(event(4, "tool_result", "x\x1b[2J", name="read_file", is_error=True))
    await talk.ended()
    assert talk.shown() == ["two", "read_file x -> failed: x\\x1b[2J"]
    assert talk.chat.working is None
    assert [params["prompt"] for params in talk.wire.of("submit")] == ["go\non"]
    assert talk.wire.of("collect") == [{"ref": "abc", "timeout": 0.0}]


async def test_tool_call_is_one_line_with_its_outcome() -> None:
    """A running call is shown above the input line. Its arguments may be cut, and it may end without a result."""
    talk = await Talk().begin()
    talk.began(request_id=None)
    long = '{"path":"a.txt","content":"' + "x" * 2000
    for n, (name, text) in enumerate((("bash", '{"command":"a\\nb"}'), ("write_file", long), ("wait", "{}")), 1):
        talk.chat.event(event(n, "tool_call", text, name=name))
    assert talk.chat.open_calls == ["bash a b", "write_file a.txt", "wait"]
    talk.shown()
    talk.chat.event(event(4, "tool_result", "one\ntwo\n[exit status 0]", name="bash"))
    talk.chat.event(event(5, "tool_result", "Denied: not here", name="write_file", is_error=True))
    await talk.ended(reply=None, error={"type": "AgentDiedError", "message": "it was ended"})
    assert talk.shown() == [
        "bash a b -> ok, 2 lines",
        "write_file a.txt -> failed: Denied: not here",
        "wait -> no result",
        "AgentDiedError: it was ended",
    ]


async def test_calls_of_subagents_are_shown_when_they_end() -> None:
    talk = await Talk().begin()
    call = {"kind": "call", "tool": "bash", "input": {"command": "make"}, "agent": "kim", "depth": 2, "reason": ""}
    call |= {"decision": "allow", "elapsed_ms": 1200, "success": True, "result": "done"}
    for outcome in ("start", "ran"):
        talk.chat.event(call | {"outcome": outcome})
    assert talk.shown() == ["  kim: bash make -> ok, 1.2 s"]


async def test_changes_in_a_worktree_are_shown_before_the_chat_is_idle() -> None:
    """The chat is not idle until the answer is collected, because a chat with piped input ends when it is idle."""
    talk = await Talk().begin()
    report = WorktreeReport("/w", "orch/abc", "main", ("a.txt",), 1, (), " a.txt | 1 +", ("a.txt",))
    talk.wire.answers["collect"] = REPLY | {"worktree": msgspec.to_builtins(report)}
    talk.wire.slow["collect"] = asyncio.Event()
    await talk.chat.process_input("go")
    talk.began()
    await talk.ended()
    assert (talk.chat.idle.is_set(), talk.chat.working) == (False, None)
    talk.wire.slow["collect"].set()
    await talk.chat.idle.wait()
    assert talk.shown()[-4:] == [
        "worktree (branch orch/abc): 1 file changed, 0 commits, 1 uncommitted",
        " a.txt | 1 +",
        "conflicts with main: a.txt",
        "to merge: orch merge abc",
    ]


async def test_input_during_a_turn_steers_or_follows_up() -> None:
    """A steering message that the turn did not read becomes the next query."""
    talk = await Talk().begin()
    await talk.chat.process_input("go")
    talk.began()
    await talk.chat.process_input("left")
    await talk.chat.process_input("then right", follow_up=True)
    assert [(each["text"], each["follow_up"]) for each in talk.wire.of("steer")] == [
        ("left", False),
        ("then right", True),
    ]
    talk.wire.answers["queue"] = {"waiting": [{"id": "s1", "text": "left"}, {"id": "other", "text": "not mine"}]}
    talk.wire.answers["clear_queue"] = {"waiting": [{"id": "s1", "text": "left"}]}
    await talk.ended()
    assert talk.wire.of("clear_queue") == [{"ref": "abc", "ids": ["s1"]}]
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["go", "left"]


async def test_prompts_are_delivered_in_typed_order() -> None:
    """A second prompt waits until the request of the first one is answered."""
    talk = await Talk().begin()
    talk.wire.slow["submit"] = asyncio.Event()
    typed = [asyncio.ensure_future(talk.chat.process_input(each)) for each in ("one", "two")]
    for _ in range(5):
        await asyncio.sleep(0)
    assert talk.wire.of("steer") == []
    talk.wire.slow["submit"].set()
    await asyncio.gather(*typed)
    found = [
        (name, params.get("prompt") or params["text"])
        for name, params in talk.wire.asked
        if name in ("submit", "steer")
    ]
    assert found == [("submit", "one"), ("steer", "two")]


async def test_prompt_to_a_busy_agent_becomes_steering() -> None:
    """If another client's query came first, the prompt is sent as steering."""
    talk = await Talk().begin()
    talk.wire.answers["submit"] = CommandError("AgentBusyError", "at work")
    await talk.chat.process_input("go")
    assert talk.wire.of("steer")[0]["text"] == "go"


async def test_turns_of_other_clients_are_shown() -> None:
    """The prompt and its origin are shown, and the answer is not collected."""
    talk = await Talk().begin()
    talk.began(prompt="from afar\x9b2J", request_id=None)
    await talk.ended()
    talk.began(prompt="done", asker="boss")
    await talk.ended()
    talk.began(prompt="news", from_inbox=True)
    await talk.ended()
    listed = [line for line in talk.shown() if "42" not in line]
    assert listed == ["asked elsewhere: from afar\\x9b2J", "agent boss asks: done", "reports of its subagents: news"]
    assert talk.wire.of("collect") == []


async def test_reconnecting_shows_history_and_the_running_turn() -> None:
    """The chat shows the last messages, the response so far, and then new events."""
    talk = Talk()
    folder = user(f"{OPENING}README.md{CLOSING}")
    first = user("Task: t\n\nQuery: what is it?")
    steered = user("[Steering]\nlong ago")
    cut = user("[The turn before this one was cut short; what it recorded is above.]\n\nlong ago")
    talk.wire.said = [user("older"), steered, cut, *[user("long ago")] * 15, folder, first, assistant("It is.")]
    await talk.chat.switch_to("1")
    assert talk.shown()[1:] == ["(1 message not shown)", *["> long ago"] * 17, "> what is it?", "It is."]
    talk.began(prompt="and now?", met=True)
    call, text = TurnEvent(5, "tool_call", "{}", "bash"), TurnEvent(9, "text", "I am")
    talk.chat.event(msgspec.to_builtins(TurnSoFar("q", (call, text), n=9, lost=2)))
    talk.chat.event(event(10, "text", " here"))
    lines = [
        "> and now?",
        "(the agent is working on this)",
        "(2 events of this turn were not shown)",
        "I am here",
    ]
    assert talk.shown() == lines
    talk.chat.event(event(11, "message", "I am here", step=1))
    await talk.ended()
    assert "I am here" not in "".join(talk.shown()).replace("I am here", "", 1)


async def test_text_streamed_before_a_cancel_stays_on_the_screen() -> None:
    """The text is shown once, followed by the stop reason."""
    talk = await Talk().begin()
    await talk.chat.process_input("go")
    talk.began()
    talk.chat.event(event(1, "text", "Once upon"))
    await talk.chat.interrupt()
    text = "Once upon\n\n[The turn was cancelled.]"
    await talk.ended(reply=REPLY | {"text": text, "steps": 0, "stop_reason": "cancelled"})
    found = talk.shown()
    assert found.count("Once upon") == 1
    assert "the turn ended early: cancelled" in found


async def test_ctrl_c_cancels_softly_then_hard() -> None:
    """The end of the turn closes questions of the agent, but not questions of a subagent."""
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
    await talk.chat.process_input("n")
    assert talk.chat.input_hint == ""
    assert talk.chat.failed


@pytest.mark.parametrize(("expected", "ended"), [("", []), ("e", [{"refs": ["kid"]}])])
async def test_leaving_asks_whether_to_keep_live_agents(expected: str, ended: list[Any]) -> None:
    """The answers are keep, end and stay. Other input does not leave."""
    talk = await Talk().begin()
    talk.wire.answers["list"] = [AGENT, CHILD]
    await talk.chat.leave()
    assert not talk.chat.done.is_set()
    assert "  2 kim: idle" in talk.shown()
    await talk.chat.process_input("what?")
    await talk.chat.process_input("s")
    assert not talk.chat.done.is_set()
    await talk.chat.leave()
    await talk.chat.process_input(expected)
    assert talk.chat.done.is_set()
    assert talk.wire.of("kill") == ended
    assert talk.shown()[-1] == "agent 1 (n) is kept: orch chat 1 continues the chat"


@pytest.mark.parametrize(("fresh", "kept"), [(True, []), (False, ["abc"])])
async def test_unused_new_agent_is_ended_on_leaving(fresh: bool, kept: list[str]) -> None:
    """An agent that existed before the chat is kept."""
    talk = Talk()
    talk.wire.answers["state"] = AGENT | {"queries": 0}
    await talk.chat.switch_to("1", is_new=fresh)
    await talk.chat.leave()
    assert talk.chat.done.is_set()
    assert talk.wire.of("kill") == ([] if kept else [{"refs": ["abc"]}])


async def test_unused_agent_is_ended_when_the_terminal_is_lost() -> None:
    """An unused agent is also ended on a switch. An agent with messages, a title or queries is kept."""
    talk = await Talk().begin()
    talk.wire.executes("status")
    await talk.chat.process_input("/status")
    await talk.chat.discard_unused()
    assert talk.wire.of("kill") == [{"refs": ["abc"]}]
    for there in ({"messages": [{}]}, {"agent": AGENT | {"queries": 0, "title": "pumps"}}, {"agent": AGENT}):
        talk = Talk()
        talk.wire.answers["show"] |= there
        await talk.begin()
        await talk.chat.discard_unused()
        assert talk.wire.of("kill") == []
    talk = await Talk().begin()
    talk.wire.answers["state"] = AGENT | {"id": "kid"}
    talk.wire.executes("switch", kind="switch", agent="kid")
    await talk.chat.process_input("/switch kid")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert talk.wire.of("kill") == [{"refs": ["abc"]}]


@pytest.mark.parametrize("fails", [False, True])
async def test_input_typed_during_a_switch_goes_to_the_new_agent(fails: bool) -> None:
    """If the switch fails, the input returns to the input line."""
    talk = await Talk().begin()
    talk.wire.answers["commands"] |= {
        "commands": [{"name": "use", "aliases": ["switch"], "moves": True}],
        "digest": "2",
    }
    await talk.chat.commands.load("abc")
    talk.wire.executes("switch", kind="switch", agent="kid")
    talk.wire.slow["execute"] = asyncio.Event()
    typed = [asyncio.ensure_future(talk.chat.process_input(each)) for each in ("/switch kid", "hello kid", "/status")]
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


async def test_agent_ended_elsewhere_is_not_reported_as_kept() -> None:
    """The message says how to resume the agent."""
    talk = await Talk().begin()
    talk.wire.answers["state"] = AGENT | {"status": "killed"}
    await talk.chat.leave()
    assert talk.shown()[-1] == "agent 1 (n) was ended: orch resume 1 makes it usable again"


async def test_ended_daemon_is_reported_and_the_next_prompt_reconnects() -> None:
    """The next prompt is sent, and the chat watches the agent again."""
    talk = await Talk().begin()
    await talk.chat.process_input("go")
    talk.began()
    talk.chat.event(event(1, "text", "half a li"))
    talk.wire.there = False
    talk.chat._lost(CommandError("DaemonGone", "the daemon ended"))
    assert talk.chat.working is None
    assert talk.shown()[1:3] == ["half a li", "DaemonGone: the daemon ended"]
    await talk.chat.process_input("again")
    assert talk.shown() == ["> again"]
    assert len(talk.wire.watched) == 2
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["go", "again"]
    talk.began(met=True)  # the chat began to watch after the turn had started
    talk.chat.event(event(1, "text", "whole"))
    assert talk.shown() == ["whole"]


async def test_question_of_an_ended_daemon_is_dropped() -> None:
    """The chat does not wait for an answer any more."""
    talk = await Talk().begin()
    talk.began(request_id=None)
    talk.chat.event(question())
    talk.chat._lost(CommandError("DaemonGone", "the daemon ended"))
    assert not talk.chat.input_hint
    assert talk.chat.failed


@pytest.mark.parametrize("works", [False, True])
async def test_unresponsive_daemon_does_not_block_leaving(works: bool) -> None:
    """The chat ends and reports the error of the daemon."""
    talk = await Talk().begin()
    if works:
        talk.began(request_id=None)
    for method in ("list", "state", "cancel"):
        talk.wire.answers[method] = CommandError("DaemonSilent", "it says nothing")
    await talk.chat.leave()
    if works:
        await talk.chat.process_input("end")
    assert talk.chat.done.is_set()
    assert talk.shown()[-1] == "DaemonSilent: it says nothing"


async def test_refused_late_steering_returns_to_the_input_line() -> None:
    """If the query that replaces unread steering is refused, its text returns to the input line."""
    talk = await Talk().begin()
    await talk.chat.process_input("go")
    talk.began()
    await talk.chat.process_input("and the valve")
    waiting = {"waiting": [{"id": "s1", "text": "and the valve"}]}
    talk.wire.answers |= {"queue": waiting, "clear_queue": waiting}
    talk.wire.answers["submit"] = CommandError("BudgetExceededError", "no dollar is left")
    await talk.ended()
    assert talk.chat.draft == "and the valve"
    assert "BudgetExceededError: no dollar is left" in talk.shown()


async def test_ctrl_c_discards_queued_input_lines() -> None:
    """Ctrl-C leaves the paste mode, and the lines so far are not sent."""
    talk = await Talk().begin()
    talk.wire.executes("paste", kind="paste")
    await talk.chat.process_input("/paste")
    await talk.chat.process_input("one")
    assert await talk.chat.interrupt(typed=True) == "clear"
    assert not talk.chat.input_hint
    await talk.chat.process_input("two")
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["two"]


async def test_errors_are_shown_and_the_chat_continues() -> None:
    talk = await Talk().begin()
    talk.wire.answers["submit"] = CommandError("AgentGoneError", "it was killed: orch resume 1")
    await talk.chat.process_input("go")
    assert talk.shown()[-1] == "AgentGoneError: it was killed: orch resume 1"
    assert talk.chat.working is None


async def test_slash_commands_run_in_the_session() -> None:
    """The result of a command is shown. A path and a line with two slashes are sent to the model."""
    talk = await Talk().begin()
    assert talk.chat.commands.known == {"kill": "end an agent", "end": "end an agent"}
    talk.wire.executes("agents", "a table\x1b[2J")
    await talk.chat.process_input("/agents --all")
    assert talk.shown() == ["> /agents --all", "a table\\x1b[2J"]
    assert talk.wire.of("execute") == [{"ref": "abc", "text": "/agents --all"}]
    talk.wire.executes("diff", "--- a\n+new\n")
    await talk.chat.process_input("/diff")
    assert talk.output.take()[1:] == [[("strong", "--- a")], [("add", "+new")]]
    await talk.chat.process_input("/etc/passwd is a path")
    await talk.chat.process_input("//status is said")
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["/etc/passwd is a path"]
    assert talk.wire.of("steer")[0]["text"] == "/status is said"


async def test_extension_widgets_are_updated_after_each_turn() -> None:
    """A widget shows the output of its command as one line, with escaped control characters."""
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


async def test_help_lists_key_bindings() -> None:
    """`/help` lists the keys of the chat and the commands of the session."""
    talk = await Talk().begin()
    talk.wire.executes("help", "/kill ID")
    await talk.chat.process_input("/help")
    text = "\n".join(talk.shown())
    assert "Alt-Enter" in text
    assert "/kill ID" in text


async def test_command_effects_are_applied() -> None:
    """The effects are ask, edit, copy, paste, switch and quit."""
    talk = await Talk().begin()
    talk.wire.executes("review", kind="ask", text="review this")
    await talk.chat.process_input("/review")
    assert talk.wire.of("submit")[0]["prompt"] == "review this"
    await talk.ended()
    talk.wire.executes("branch", kind="edit", text="again")
    await talk.chat.process_input("/branch e1")
    assert talk.chat.draft == "again"
    talk.wire.executes("copy", kind="copy", text="42")
    await talk.chat.process_input("/copy")
    assert talk.chat.copied == "42"
    talk.wire.executes("paste", kind="paste", text="one")
    await talk.chat.process_input("/paste one")
    assert "/end" in talk.chat.input_hint
    for line in ("/two", "", "/end"):
        await talk.chat.process_input(line)
    assert talk.wire.of("submit")[1]["prompt"] == "one\n/two\n"
    await talk.ended()
    talk.wire.executes("plan", kind="switch", agent="kid", text="plan it")
    talk.wire.answers["state"] = CHILD
    await talk.chat.process_input("/plan plan it")
    assert (talk.chat.id, talk.wire.watched[-1]["ref"]) == ("kid", "kid")
    assert (talk.wire.of("submit")[2]["ref"], talk.wire.of("submit")[2]["prompt"]) == ("kid", "plan it")
    await talk.ended()
    talk.wire.executes("quit", kind="quit")
    await talk.chat.process_input("/quit")
    assert talk.chat.done.is_set()


async def test_ctrl_c_abandons_a_running_command() -> None:
    """The request is dropped, and the chat shows that the command was interrupted."""
    talk = await Talk().begin()
    talk.wire.slow["execute"] = asyncio.Event()
    task = asyncio.create_task(talk.chat.process_input("!sleep 100"))
    while not talk.chat.commands.running:  # noqa: ASYNC110  # yields
        await asyncio.sleep(0)
    assert await talk.chat.interrupt() == "stop"
    assert talk.wire.dropped[0].is_set()
    talk.wire.answers["execute"] = CommandError("Interrupted", "not waited for")
    talk.wire.slow["execute"].set()
    await task
    assert not talk.chat.commands.running
    assert talk.shown()[-1] == "Interrupted: not waited for"


async def test_missing_paste_keeps_the_line_unsent() -> None:
    """A line with a mark of an unknown paste stays in the input line."""
    talk = await Talk().begin()
    typed = "look: [pasted 0123abcd: 9,999 characters, 1 line]"
    await talk.chat.process_input(typed)
    assert talk.wire.of("submit") == []
    assert talk.chat.draft == typed


async def test_approvals_of_a_left_agent_are_asked_and_its_end_reported() -> None:
    """After a switch, questions of the previous agent are asked, and the end of its turn is reported."""
    talk = await Talk().begin()
    await talk.chat.process_input("go")
    talk.began()
    talk.wire.answers["state"] = CHILD
    talk.wire.executes("switch", kind="switch", agent="kid")
    await talk.chat.process_input("/switch kid")
    [beside] = talk.wire.siblings
    assert beside.watched == [{"ref": "abc", "approve": True}]
    talk.shown()
    beside.tell(question())
    assert "agent: n (abc, depth 1)" in talk.shown()
    await talk.chat.process_input("y")
    assert talk.wire.of("answer")[0]["allow"] is True
    beside.tell(question("q2", agent_id="its child"))
    talk.wire.answers["state"] = AGENT | {"id": "third"}
    await talk.chat.switch_to("third")
    assert "Allow it?" in talk.chat.input_hint
    beside.tell(msgspec.to_builtins(TurnEnded("q")) | {"reply": REPLY})
    assert not talk.chat.input_hint
    assert talk.shown()[-1] == "n has answered; /switch 1 returns to it"
    assert not beside.there
    talk.wire.answers["state"] = AGENT
    talk.wire.executes("switch", kind="switch", agent="abc")
    await talk.chat.process_input("/switch 1")
    assert len(talk.wire.siblings) == 1


async def test_failed_switch_keeps_the_current_agent() -> None:
    """If a request of the switch fails, the chat stays with the current agent and its watch."""
    talk = await Talk().begin()
    talk.wire.executes("switch", kind="switch", agent="kid")
    watched = len(talk.wire.watched)
    for method in ("state", "commands"):
        before, talk.wire.answers[method] = talk.wire.answers[method], CommandError("AgentGoneError", "it was pruned")
        await talk.chat.process_input("/switch kid")
        talk.wire.answers[method] = before
        assert talk.shown()[-1] == "AgentGoneError: it was pruned"
        assert (talk.chat.id, len(talk.wire.watched)) == ("abc", watched)
