"""A conversation with one agent: what is typed becomes prompts, steering, answers and commands; events become lines."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..client.failure import CommandError
from ..render.approvals import denied_note
from . import approvals, status_bar
from .approvals import AskUser, Questions
from .commands import ChatCommand, Commands, said_as
from .daemon_connection import DaemonConnection
from .keys import Interrupts
from .pastes import Pastes, format_prompt
from .text.live_text import LiveText
from .text.styled_text import Piece
from .turns import TOLD, TurnLog

__all__ = ["Absent", "Chat"]


# --- Agents that were at work when the talk went on with another one ---


class Absent:
    """Watches them for a chat, each until its turn is over, or until one talks with it again."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._links: dict[str, DaemonConnection] = {}

    def __contains__(self, id: object) -> bool:
        """Say whether that one is watched."""
        return id in self._links

    def left(self, agent: dict[str, Any]) -> None:
        """The talk goes on with another one than `agent`, which is at work."""
        self._links[agent["id"]] = link = self._chat.link.sibling()
        asked = {"ref": agent["id"], "approve": self._chat.questions.wanted}
        link.watch(asked, partial(self._event, agent), partial(self._lost, agent))

    def met(self, id: str) -> None:
        """The talk is with that one again."""
        if (link := self._links.pop(id, None)) is not None:
            link.close()

    def close(self) -> None:
        """Watch nobody any more."""
        for id in list(self._links):
            self.met(id)

    def _event(self, agent: dict[str, Any], event: dict[str, Any]) -> None:
        chat, kind = self._chat, event["kind"]
        if kind == "question":
            chat.questions.add(event | {"absent": agent["id"]})
        elif kind == "question_over":
            chat.questions.over(event["id"])
        elif kind == "ended":
            self.met(agent["id"])
            chat.questions.drop(agent["id"])
            error = event["error"]
            what = f"has failed: {error['type']}: {error['message']}" if error is not None else "has answered"
            chat.sheet.note(f"{agent['name']} {what}; /switch {agent['seq']} goes there")
        chat.changed()

    def _lost(self, agent: dict[str, Any], _: CommandError) -> None:
        self.met(agent["id"])  # that the daemon is gone is said where one talks


BUSY: Final = "AgentBusyError"


class Chat:
    """Talks with an agent over `link` and writes on `sheet`; `changed` is called when there is something to show.

    What needs approval is asked of the person when `mode` is `ask`, let through when it is `auto`; with `deny` nobody
    is asked, and the answer is no. `ask_user` asks in another place than the chat. Calls that were denied because
    nobody could be asked make the turn a failed one, unless the user `chose_deny`. With `echo` what is said is shown.
    `clock` counts seconds.
    """

    def __init__(
        self,
        link: DaemonConnection,
        sheet: LiveText,
        *,
        mode: str = "ask",
        ask_user: AskUser | None = None,
        chose_deny: bool = False,
        echo: bool = True,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link = link
        self.sheet = sheet
        self.changed = changed
        self.pastes = Pastes()
        self.rows: list[dict[str, Any]] = []
        self.agent: dict[str, Any] = {}
        """The agent's row as it was when the talk with it began."""
        self.done = asyncio.Event()
        """Set when it is time to leave."""
        self.idle = asyncio.Event()
        """Set while the agent is not at work, as far as is known."""
        self.failed = False
        """Whether what was said last came to nothing: its turn, or its command, failed."""
        self.draft = ""
        """What is to be put where the next prompt is written."""
        self.copied: str | None = None
        """What is to be put on the clipboard."""
        self.commands = Commands(self)
        self.questions = Questions(self, mode, ask_user)
        self._chose_deny = chose_deny
        self.absent = Absent(self)
        self._echo = echo
        self._clock = clock
        self._own: set[str] = set()
        self._steers: set[str] = set()
        self._story = TurnLog(sheet, self._own)
        self._met = asyncio.Event()
        """Set when what was said before is on the sheet."""
        self._leaving = False
        self._mine = False
        """Whether the turn was asked for here."""
        self._since: float | None = None
        self._presses = Interrupts()
        self._order = ChatCommand()
        self._fresh = False

    # With whom.

    async def meet(self, ref: str, *, told: bool = True, fresh: bool = False) -> None:
        """Talk with the agent `ref` from now on; with `told` tell the end of its conversation. Raises Failure, and the
        talk is with whom it was.

        A `fresh` one was made for this, and is not kept if nothing comes of it.
        """
        agent = await self.link.call("state", ref=ref)
        await self.commands.load(agent["id"])
        if self._fresh and agent["id"] != self.id:
            self.later(self._discard(self.id))
        if self._since is not None and agent["id"] != self.id:
            self.absent.left(self.agent)
        self.absent.met(agent["id"])
        self.agent = agent
        self._fresh = fresh
        self.questions.clear(self.absent)
        self._story = TurnLog(self.sheet, self._own, self.agent["depth"])
        self._since = None
        self.idle.set()
        self._introduce()
        self._watch(TOLD if told and not fresh else 0)
        await self._met.wait()
        await self.look()
        self.later(self.commands.refresh())

    def _introduce(self) -> None:
        """Say with whom one talks."""
        row = self.agent
        model = f", {row['model']}" if row["model"] else ""
        self.sheet.note(f"agent {row['seq']}, {row['name']}{model}, in {row['cwd']}; /help tells what can be typed")

    def echo(self, text: str) -> None:
        """Show what was typed."""
        if self._echo:
            self.sheet.note(text, "you")
            self.changed()

    @property
    def id(self) -> str:
        """The agent's id."""
        return str(self.agent["id"])

    @property
    def working(self) -> float | None:
        """For how many seconds the turn has been under way, None while there is none."""
        return None if self._since is None else self._clock() - self._since

    async def look(self) -> None:
        """Ask how all agents are. That nobody answers is said elsewhere."""
        try:
            self.rows = await self.link.call("list")
        except CommandError:
            self.rows = []
        self.changed()

    def bar(self, width: int) -> list[Piece]:
        """Return the line that says how all is."""
        return status_bar.format_status_bar(
            self.rows, self.id, width, working=self.working, widgets=self.commands.widgets["status"]
        )

    @property
    def lively(self) -> bool:
        """Whether the agent, or any below it, is at work."""
        return self._since is not None or any(
            row["pending"] is not None for row in status_bar.live_descendants(self.rows, self.id)
        )

    @property
    def asks(self) -> str:
        """What is asked at the moment, "" for nothing."""
        if self._leaving:
            return approvals.LEAVE
        return self.questions.asks or self.commands.asks

    @property
    def topic(self) -> str:
        """What tells the question that is open from every other, "" for none."""
        return "leaving" if self._leaving else self.questions.id

    # What is typed.

    async def take(self, typed: str, *, follow_up: bool = False, topic: str | None = None) -> None:
        """Do what `typed` asks for. What goes wrong is said on the sheet.

        What answered the question `topic` answers no other: is that over, it goes back into the line.
        """
        if topic and topic != self.topic:
            self.draft = typed
            self.changed()
            return
        try:
            if self._leaving:
                await self._left(typed)
            elif self.questions.asks:
                await self.questions.answer(typed)
            elif self.commands.takes(typed):
                await self._command(typed)
            elif typed.strip():
                async with self._order.turn() as meant:
                    if meant:
                        await self.say(said_as(typed), follow_up=follow_up)
                    else:
                        self._give_back(typed)
        except CommandError as failure:
            self._fail(failure)
        self.changed()

    async def _command(self, typed: str) -> None:
        if not (moves := self.commands.moving(typed)) and not self._order.moving:
            await self.commands.run(typed)  # which may take long, and nobody waits for it
            return
        async with self._order.turn() as meant:
            if not meant:
                self._give_back(typed)
            elif moves:
                async with self._order.move() as missed:
                    await self.commands.run(typed)
                    if self.failed:
                        missed()
        if meant and not moves:
            await self.commands.run(typed)

    def _give_back(self, typed: str) -> None:
        """What was meant for an agent that nobody came to goes back into the line."""
        self.draft = f"{self.draft}\n{typed}" if self.draft else typed
        self.sheet.note("that was not said: it was for another agent", "error")

    def _fail(self, failure: CommandError) -> None:
        self.failed = True
        self.sheet.note(f"{failure.kind}: {failure}", "error")

    async def say(self, typed: str, *, follow_up: bool = False) -> None:
        """Ask the agent, or while it works steer it, or let it hear that when it would stop. Raises Failure."""
        text, unknown = self.pastes.unfold(typed)
        if unknown:
            self.sheet.note(f"{unknown[0]} is not there any more, and nothing was said: paste it anew", "error")
            self.draft = typed
            return
        if not self.link.watching:
            self._watch()
        self.echo(format_prompt(typed))
        if self._since is not None:
            said = await self.link.call("steer", ref=self.id, text=text, follow_up=follow_up)
            if said.get("steer_id"):
                self._steers.add(said["steer_id"])
                self.sheet.note("  (heard when it would stop)" if follow_up else "  (heard before its next step)")
            return
        await self._ask(text)

    async def _ask(self, text: str) -> None:
        request_id = os.urandom(8).hex()
        self._own.add(request_id)
        self._works()
        try:
            await self.link.call("submit", ref=self.id, prompt=text, request_id=request_id)
        except CommandError as failure:
            self._rests()
            if failure.kind != BUSY:
                raise
            self._works()
            await self.link.call("steer", ref=self.id, text=text)

    def _works(self) -> None:
        self._fresh = False
        if self._since is None:
            self._since = self._clock()
        self.idle.clear()

    def _rests(self) -> None:
        self._since = None
        self.idle.set()
        self.changed()

    # What happens.

    def _watch(self, messages: int = 0) -> None:
        """Be told of what the agent does from now on; first of so many messages of its conversation."""
        self._met = asyncio.Event()
        if not messages:
            self._met.set()
        asked = {"ref": self.id, "approve": self.questions.wanted, "progress": True, "messages": messages}
        self.link.watch(asked, self.event, self._lost)

    def _lost(self, failure: CommandError) -> None:
        self._story.lost()
        self._fail(failure)
        self.sheet.note("what the agent finished is kept; the next prompt goes on with it")
        self.questions.clear()  # those that still wait are told of again
        self._met.set()
        self._rests()

    def event(self, event: dict[str, Any]) -> None:
        """Show what happened."""
        kind = event["kind"]
        if kind == "began":
            self._works()
            self._mine = event["request_id"] in self._own
            self.later(self.look())
            self._story.began(event)
        elif kind == "ended":
            self._ended(event)
        elif kind == "question":
            self.questions.add(event)
        elif kind == "question_over":
            self.questions.over(event["id"])
        elif kind == "call":
            self._story.called(event)
        elif kind == "spoken":
            self._story.conversation(event["messages"], event["before"])
            self._met.set()
        elif kind == "so_far":
            self._story.so_far(event)
        else:
            self._story.happened(event)
        self.changed()

    def _ended(self, event: dict[str, Any]) -> None:
        self._story.ended(event)
        self.failed = event["error"] is not None or self._has_denied(event["reply"])
        self.questions.drop(self.id)
        self._rests()
        self.later(self._after())

    def _has_denied(self, reply: dict[str, Any] | None) -> bool:
        """Tell the person of calls that were denied because nobody could be asked; return whether there were any."""
        if self._chose_deny or reply is None or not reply["denied"]:
            return False
        self.sheet.note(denied_note(reply["denied"]), "error")
        return True

    async def _after(self) -> None:
        """The answer was seen; what was said too late for the turn is asked now."""
        if self._mine:
            try:
                await self.link.call("collect", ref=self.id, timeout=0.0)
            except CommandError:
                pass  # the next turn is under way, or the answer was an error
        await self.look()
        self.later(self.commands.refresh())
        steers, self._steers = self._steers, set()
        if not steers or self._since is not None:
            return
        waiting = (await self.link.call("queue", ref=self.id))["waiting"]
        mine = [each["id"] for each in waiting if each["id"] in steers]
        if mine:
            taken = await self.link.call("clear_queue", ref=self.id, ids=mine)
            if text := "\n\n".join(each["text"] for each in taken["waiting"]):
                await self._ask_late(text)

    async def _ask_late(self, text: str) -> None:
        """Ask what nobody will hear otherwise; refused, it is there to be said again. Raises Failure."""
        try:
            await self._ask(text)
        except CommandError:
            self.draft = text
            raise

    # Ctrl-C, and leaving.

    async def interrupt(self, *, typed: bool = False) -> str:
        """Do what Ctrl-C means now, and return that; `clear` is left to the caller. A command is not waited for."""
        if self._leaving:
            self._leaving = False
            return "stay"
        if self.commands.pasting:
            self.commands.drop()
            self.sheet.note("none of these lines is said")
            self.changed()
            return "clear"
        if self.commands.running and self._since is None:
            self.commands.stop()
            return "stop"
        meaning = self._presses.meaning(self._clock(), typed=typed, working=self._since is not None)
        try:
            if meaning == "cancel":
                self.sheet.note("the turn ends at its next safe point; Ctrl-C again ends it at once")
                await self.link.call("cancel", ref=self.id)
            elif meaning == "kill":
                self.sheet.note("the turn is ended")
                await self.link.call("cancel", ref=self.id, hard=True)
            elif meaning == "warn":
                self.sheet.note("Ctrl-C again, or Ctrl-D, leaves")
            elif meaning == "leave":
                await self.leave()
        except CommandError as failure:
            self.sheet.note(f"{failure.kind}: {failure}", "error")
        self.changed()
        return meaning

    async def leave(self) -> None:
        """Leave, after a question when somebody would go on living."""
        await self.look()
        living = status_bar.live_descendants(self.rows, self.id)
        if not living and self._since is None:
            await self._left("keep")
            return
        if self._leaving:
            return
        self._leaving = True
        for row in living:
            doing = row["activity"] or row["status"]
            self.sheet.note(f"  {row['seq']} {row['name']}: {doing}", "ask")
        works = f"{self.agent['name']} is at work" if self._since is not None else ""
        several = f"{len(living)} of its subagents live" if living else ""
        self.sheet.note("; ".join(filter(None, (works, several))), "ask")
        self.changed()

    async def _left(self, typed: str) -> None:
        said = approvals.parse_leave_answer(typed)
        if said is None:
            self.sheet.note("that is no answer", "error")
            return
        self._leaving = False
        if said == "stay":
            return
        try:
            if said == "end":
                await self._end_all()
            self.sheet.note(await self._farewell())
        except CommandError as failure:
            self._fail(failure)  # a daemon that does not answer keeps nobody here
        self.done.set()

    async def _end_all(self) -> None:
        """End the turn, and those below the agent. Raises Failure."""
        if self._since is not None:
            await self.link.call("cancel", ref=self.id, hard=True)
        if living := [row["id"] for row in status_bar.live_descendants(self.rows, self.id)]:
            await self.link.call("kill", refs=living)

    async def _farewell(self) -> str:
        """Return how to come back; an agent that was never asked anything is not kept for that."""
        row = await self.link.call("state", ref=self.id)
        if row["status"] == "killed":
            return f"agent {row['seq']} ({row['name']}) was ended: orch resume {row['seq']} lets it answer again"
        if await self.gone():
            return "nothing was asked, and nothing is kept"
        return f"agent {row['seq']} ({row['name']}) is kept: orch chat {row['seq']} comes back to it"

    async def gone(self) -> bool:
        """The person is gone, with a word or without: an agent that was made for this, and has nothing to tell of, is
        ended. Return whether it is. Raises Failure."""
        fresh, self._fresh = self._fresh, False
        return fresh and await self._discard(self.id)

    async def _discard(self, id: str) -> bool:
        shown, rows = await self.link.call("show", ref=id, messages=1), await self.link.call("list")
        row = shown["agent"]
        if (
            shown["messages"]
            or row["queries"]
            or row["pending"] is not None
            or row["title"]
            or status_bar.live_descendants(rows, id)
        ):
            return False
        await self.link.call("kill", refs=[id])
        return True

    def later(self, what: Any) -> None:
        """Do `what` beside everything else, and say what goes wrong with it."""
        task = asyncio.ensure_future(what)
        task.add_done_callback(self._happened_later)

    def _happened_later(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and isinstance(failure := task.exception(), CommandError):
            self.sheet.note(f"{failure.kind}: {failure}", "error")
            self.changed()
