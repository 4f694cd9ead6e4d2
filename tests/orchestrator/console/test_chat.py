"""A conversation: what is typed becomes prompts, steering, answers; events become lines; leaving ends nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from orch.cli.failure import Failure
from orch.console.chat import Chat
from orch.console.link import Link
from orch.console.sheet import Sheet
from orch_protocol.approval import AnswerQuestion, Question
from orch_protocol.messages import assistant, user
from orch_protocol.services import SERVICES
from orch_protocol.watching import QuestionOver, TurnBegan, TurnEnded, WatchAgent
from orchestrator.desk import REPLY, ROW

AGENT = ROW | {"id": "abc", "name": "n", "queries": 1, "last_activity": "2026-01-01T00:00:00+00:00"}
COMMAND = {"name": "kill", "aliases": ["end"], "summary": "end an agent", "arguments": []}
CHILD = AGENT | {"id": "kid", "name": "kim", "parent_id": "abc", "seq": 2}


class Wire(Link):
    """Stands where the daemon would: keeps what it is asked, answers what it was told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Any] = {
            "state": AGENT,
            "list": [AGENT],
            "show": {"messages": []},
            "submit": {"id": "abc", "query_id": "q"},
            "steer": {"id": "abc", "steer_id": "s1", "query_id": None},
            "queue": {"waiting": []},
            "answer": {"taken": True, "note": ""},
            "collect": REPLY,
            "cancel": AGENT,
            "kill": {"ids": []},
            "commands": {"commands": [COMMAND], "keys": [], "widgets": [], "digest": "1"},
        }
        self.watched: list[dict[str, Any]] = []
        self.there = False
        self.slow: dict[str, asyncio.Event] = {}
        self.dropped: list[Any] = []

    def executes(self, command: str, shown: str = "", **effect: str) -> None:
        """Let a command come to that."""
        made = {"agent": "", "text": ""} | effect if effect else None
        self.answers["execute"] = {"command": command, "text": shown, "data": None, "effect": made, "is_error": False}

    async def call(self, method: str, *, dropped: Any = None, **params: Any) -> Any:
        """Answer."""
        if method in self.slow:
            if dropped is not None:
                self.dropped.append(dropped)
            await self.slow[method].wait()
        msgspec.convert(params, SERVICES[method][0])
        self.asked.append((method, params))
        answer = self.answers[method]
        if isinstance(answer, Failure):
            raise answer
        return answer

    @property
    def watching(self) -> bool:
        """Whether somebody is watched."""
        return self.there

    def watch(self, params: dict[str, Any], *_: Any) -> None:
        """Take note of it."""
        msgspec.convert(params, WatchAgent)
        self.watched.append(params)
        self.there = True

    def of(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of all calls of `method`."""
        return [params for name, params in self.asked if name == method]


class Talk:
    """A chat with a wire, a sheet and a clock of its own."""

    def __init__(self, **how: Any) -> None:
        self.now = 0.0
        self.wire = Wire()
        self.sheet = Sheet()
        self.chat = Chat(self.wire, self.sheet, clock=lambda: self.now, **how)

    async def begin(self) -> Talk:
        """Meet the agent."""
        await self.chat.meet("1", fresh=True)
        return self

    def shown(self) -> list[str]:
        """Return the lines since, and the one under way."""
        lines = self.sheet.take() + ([self.sheet.live] if self.sheet.live else [])
        return ["".join(text for _, text in line) for line in lines]

    def began(self, **more: Any) -> None:
        """Let a turn begin that was asked for here, unless `more` says otherwise."""
        request = self.wire.of("submit")[-1]["request_id"] if self.wire.of("submit") else None
        fields: dict[str, Any] = {"query_id": "q", "prompt": "go", "request_id": request}
        self.chat.event(msgspec.to_builtins(TurnBegan(**(fields | more))))

    async def ended(self, **more: Any) -> None:
        """Let the turn end."""
        self.chat.event(msgspec.to_builtins(TurnEnded("q")) | {"reply": REPLY | {"steps": 1}} | more)
        for _ in range(20):
            await asyncio.sleep(0)


def event(n: int, kind: str, text: str = "", **more: Any) -> dict[str, Any]:
    """Return an event of a turn."""
    return {"n": n, "kind": kind, "text": text, **more}


def question(id: str = "q1", **changes: Any) -> dict[str, Any]:
    """Return a question as it arrives."""
    fields: dict[str, Any] = {"tool": "bash", "subject": "rm x", "input": {"command": "rm x"}, "digest": "d"}
    fields |= {"paths": (), "reason": "why", "folder": "/w", "agent": "n", "agent_id": "abc", "task": "t", "depth": 1}
    asked: dict[str, Any] = msgspec.to_builtins(Question(id=id, **(fields | changes)).with_lines())
    return asked


async def test_a_prompt_is_asked_and_its_turn_is_shown() -> None:
    """What is said streams; the answer counts as taken; the prompt is shown once."""
    talk = await Talk().begin()
    await talk.chat.take("go")
    talk.began()
    talk.chat.event(event(1, "text", "one\ntwo"))
    assert talk.shown() == ["> go", "one", "two"]
    talk.now = 3.0
    assert talk.chat.working == 3.0
    talk.chat.event(event(2, "message", "one\ntwo", step=1))
    talk.chat.event(event(3, "tool_call", '{"path": "x"}', name="read_file"))
    talk.chat.event(event(4, "tool_result", "x\x1b[2J", name="read_file", is_error=True))
    await talk.ended()
    assert talk.shown() == ["two", '-> read_file {"path": "x"}', "<- read_file error: x\\x1b[2J"]
    assert talk.chat.working is None
    assert [params["prompt"] for params in talk.wire.of("submit")] == ["go"]
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


async def test_what_answers_one_question_answers_no_other() -> None:
    """What was typed for one that is over by then goes back into the line."""
    talk = await Talk().begin()
    talk.chat.event(question("q1"))
    topic = talk.chat.topic
    talk.chat.event(question("q2"))
    talk.chat.event(msgspec.to_builtins(QuestionOver("q1")))
    await talk.chat.take("y", topic=topic)
    assert (talk.wire.of("answer"), talk.chat.draft) == ([], "y")
    await talk.chat.take("y", topic=talk.chat.topic)
    assert [params["id"] for params in talk.wire.of("answer")] == ["q2"]


async def test_an_agent_that_was_asked_meanwhile_is_steered() -> None:
    """Of two who ask at the same moment one would be refused."""
    talk = await Talk().begin()
    talk.wire.answers["submit"] = Failure("AgentBusyError", "at work")
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
    """The end of what was said, and the response as far as it has come; then it goes on."""
    talk = Talk()
    first = user("Task: t\n\nQuery: what is it?")
    talk.wire.answers["show"] = {"messages": msgspec.to_builtins([first, assistant("It is.")])}
    await talk.chat.meet("1")
    talk.began(prompt="and now?", n=4, text="I am", met=True)
    talk.chat.event(event(5, "text", " here"))
    assert talk.shown() == ["> what is it?", "It is.", "it is at work on: and now?", "I am here"]


async def test_a_question_is_shown_with_its_diff_and_answered(tmp_path: Any) -> None:
    """One after the other; what is no answer is laid aside and allows nothing."""
    (tmp_path / "f").write_text("one\n")
    edit = {"path": "f", "old_text": "one", "new_text": "two"}
    talk = await Talk().begin()
    talk.began(request_id=None)
    talk.shown()
    changed = question(tool="replace_in_file", input=edit, subject=str(tmp_path / "f"))
    for each in (changed, changed, question("q2", agent="kim", agent_id="kid")):
        talk.chat.event(each)
    lines = talk.shown()
    assert lines[0] == "tool: replace_in_file"
    assert lines[-2:] == ["-one", "+two"]
    assert talk.chat.asks.startswith("allow it?")
    await talk.chat.take("and run the tests")
    assert (talk.wire.of("answer"), talk.chat.draft) == ([], "and run the tests")
    talk.shown()
    await talk.chat.take("s")
    assert talk.shown()[:2] == ["allowed (session)", "agent: kim (kid, depth 1)"]
    await talk.chat.take("n keep it")
    assert talk.chat.asks == ""
    said = [msgspec.convert(each, AnswerQuestion) for each in talk.wire.of("answer")]
    assert said == [AnswerQuestion("q1", True, "session"), AnswerQuestion("q2", False, reason="keep it")]


async def test_a_question_that_is_over_is_not_asked_any_more() -> None:
    """Whoever answered it, and whatever became of it; what stands behind it is asked then."""
    talk = await Talk().begin()
    for id in ("q1", "q2", "q3"):
        talk.chat.event(question(id))
    talk.shown()
    talk.chat.event(msgspec.to_builtins(QuestionOver("q2")))
    assert talk.shown() == []
    talk.chat.event(msgspec.to_builtins(QuestionOver("q1")))
    assert talk.shown()[0].startswith("that was answered elsewhere")
    await talk.chat.take("y")
    assert talk.wire.of("answer")[0]["id"] == "q3"
    talk.chat.event(msgspec.to_builtins(QuestionOver("q3")))
    assert talk.chat.asks == ""


async def test_what_is_let_through_is_said() -> None:
    """With `auto` nobody is asked."""
    talk = await Talk(mode="auto").begin()
    talk.chat.event(question())
    await asyncio.sleep(0)
    assert talk.wire.of("answer") == [{"id": "q1", "allow": True}]
    assert talk.shown()[0].startswith("let through: agent: n")


async def test_with_deny_nobody_is_asked() -> None:
    """The daemon is told so, and says no at once."""
    assert (await Talk(mode="deny").begin()).wire.watched[0]["approve"] is False


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
    talk.wire.there = False
    talk.chat._lost(Failure("DaemonGone", "the daemon ended"))
    assert talk.chat.working is None
    await talk.chat.take("again")
    assert len(talk.wire.watched) == 2
    assert [each["prompt"] for each in talk.wire.of("submit")] == ["go", "again"]


async def test_a_daemon_that_ended_asks_nothing() -> None:
    """What is typed then is a prompt, and no answer to what nobody waits for."""
    talk = await Talk().begin()
    talk.began(request_id=None)
    talk.chat.event(question())
    talk.chat._lost(Failure("DaemonGone", "the daemon ended"))
    assert not talk.chat.asks
    assert talk.chat.failed


@pytest.mark.parametrize("works", [False, True])
async def test_a_daemon_that_does_not_answer_keeps_nobody_here(works: bool) -> None:
    """Who leaves has left; that nothing was ended is said."""
    talk = await Talk().begin()
    if works:
        talk.began(request_id=None)
    for method in ("list", "state", "cancel"):
        talk.wire.answers[method] = Failure("DaemonSilent", "it says nothing")
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
    talk.wire.answers["submit"] = Failure("BudgetExceededError", "no dollar is left")
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
    talk.wire.answers["submit"] = Failure("AgentGoneError", "it was killed: orch resume 1")
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
    talk.wire.answers["execute"] = Failure("Interrupted", "not waited for")
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
