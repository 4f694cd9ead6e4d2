"""A chat with one agent. Input becomes prompts, steering, answers and commands; events become lines of output."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..client.failure import CommandError
from ..render.approvals import denied_note
from ..render.worktrees import worktree_note
from . import approvals, status_bar
from .approvals import AskUser, Questions
from .commands import Commands, InputOrder, unescape
from .daemon_connection import DaemonConnection
from .keys import Interrupts
from .pastes import Pastes, format_prompt
from .text.live_text import LiveText
from .text.styled_text import Piece
from .turns import HISTORY_MESSAGES, TurnLog

__all__ = ["BackgroundAgents", "Chat"]


# --- Agents that still work after the chat has switched to another agent ---


class BackgroundAgents:
    """Watches busy agents that the chat has left.

    The watch ends when the agent's turn ends or the chat returns to the agent.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._connections: dict[str, DaemonConnection] = {}

    def __contains__(self, id: object) -> bool:
        """Return whether the agent is watched."""
        return id in self._connections

    def watch(self, agent: dict[str, Any]) -> None:
        """Start watching `agent`, which is busy when the chat switches to another agent."""
        self._connections[agent["id"]] = connection = self._chat.connection.sibling()
        request = {"ref": agent["id"], "approve": self._chat.questions.wanted}
        connection.watch(request, partial(self._event, agent), partial(self._lost, agent))

    def unwatch(self, id: str) -> None:
        """Stop watching the agent because the chat has returned to this agent."""
        if (connection := self._connections.pop(id, None)) is not None:
            connection.close()

    def close(self) -> None:
        """Stop watching all agents."""
        for id in list(self._connections):
            self.unwatch(id)

    def _event(self, agent: dict[str, Any], event: dict[str, Any]) -> None:
        chat, kind = self._chat, event["kind"]
        if kind == "question":
            chat.questions.add(event | {"absent": agent["id"]})
        elif kind == "question_over":
            chat.questions.expire(event["id"])
        elif kind == "ended":
            self.unwatch(agent["id"])
            chat.questions.remove_agent(agent["id"])
            error = event["error"]
            outcome = f"has failed: {error['type']}: {error['message']}" if error is not None else "has answered"
            chat.output.note(f"{agent['name']} {outcome}; /switch {agent['seq']} returns to it")
        chat.changed()

    def _lost(self, agent: dict[str, Any], _: CommandError) -> None:
        self.unwatch(agent["id"])  # the chat itself reports a lost connection to the daemon


BUSY: Final = "AgentBusyError"


class Chat:
    """A chat with an agent over the connection `connection`, with output on `output`.

    `changed` is called when there is new output.

    With `mode` "ask", approval questions go to the user. "auto" approves all calls, "deny" denies all calls. The
    function `ask_user` asks questions outside the chat. A turn counts as failed if calls were denied because no user
    could be asked, unless `chose_deny` is True. With `echo`, input is repeated in the output. `clock` returns seconds.
    """

    def __init__(
        self,
        connection: DaemonConnection,
        output: LiveText,
        *,
        mode: str = "ask",
        ask_user: AskUser | None = None,
        chose_deny: bool = False,
        echo: bool = True,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connection = connection
        self.output = output
        self.changed = changed
        self.pastes = Pastes()
        self.rows: list[dict[str, Any]] = []
        self.agent: dict[str, Any] = {}
        """The agent's row at the time when the chat switched to it."""
        self.done = asyncio.Event()
        """Set when the chat ends."""
        self.idle = asyncio.Event()
        """Set except while the chat knows that the agent is busy."""
        self.failed = False
        """Whether the last prompt or command failed."""
        self.draft = ""
        """Text to insert into the input line."""
        self.copied: str | None = None
        """Text to copy to the clipboard."""
        self.commands = Commands(self)
        self.questions = Questions(self, mode, ask_user)
        self._chose_deny = chose_deny
        self.absent = BackgroundAgents(self)
        self._echo = echo
        self.clock = clock
        self._own_requests: set[str] = set()
        self._steers: set[str] = set()
        self._turn_log = TurnLog(output, self._own_requests)
        self._history_shown = asyncio.Event()
        """Set when the last messages of the earlier conversation have been shown."""
        self._leaving = False
        self._started_here = False
        """Whether the turn was started from this chat."""
        self._turn_start: float | None = None
        self._interrupts = Interrupts()
        self._input_order = InputOrder()
        self._is_new = False

    # The agent.

    async def switch_to(self, ref: str, *, show_history: bool = True, is_new: bool = False) -> None:
        """Switch the chat to the agent `ref`. With `show_history`, show the last messages of its conversation.

        With `is_new`, the agent was created for this chat, and it is discarded if it stays unused. If the agent cannot
        be found, raises CommandError, and the chat stays with the current agent.
        """
        agent = await self.connection.call("state", ref=ref)
        await self.commands.load(agent["id"])
        if self._is_new and agent["id"] != self.id:
            self.run_in_background(self._discard(self.id))
        if self._turn_start is not None and agent["id"] != self.id:
            self.absent.watch(self.agent)
        self.absent.unwatch(agent["id"])
        self.agent = agent
        self._is_new = is_new
        self.questions.clear(self.absent)
        self._turn_log = TurnLog(self.output, self._own_requests, self.agent["depth"])
        self._turn_start = None
        self.idle.set()
        self._introduce()
        self._watch(HISTORY_MESSAGES if show_history and not is_new else 0)
        await self._history_shown.wait()
        await self.refresh_rows()
        self.run_in_background(self.commands.refresh())

    def _introduce(self) -> None:
        row = self.agent
        model = f", {row['model']}" if row["model"] else ""
        self.output.note(f"agent {row['seq']}, {row['name']}{model}, in {row['cwd']}; /help lists commands")

    def echo(self, text: str) -> None:
        """Show the input in the output."""
        if self._echo:
            self.output.note(text, "you")
            self.changed()

    @property
    def id(self) -> str:
        """The agent's id."""
        return str(self.agent["id"])

    @property
    def working(self) -> float | None:
        """Seconds since the current turn began. None between turns."""
        return None if self._turn_start is None else self.clock() - self._turn_start

    @property
    def open_calls(self) -> list[str]:
        """The tool calls of the agent that still run."""
        return self._turn_log.open_calls

    async def refresh_rows(self) -> None:
        """Refresh the rows of all agents. Errors are ignored here, because other requests report them."""
        try:
            self.rows = await self.connection.call("list")
        except CommandError:
            self.rows = []
        self.changed()

    def bar(self, width: int) -> list[Piece]:
        """Return the status bar."""
        return status_bar.format_status_bar(
            self.rows, self.id, width, working=self.working, widgets=self.commands.widgets["status"]
        )

    @property
    def is_active(self) -> bool:
        """Whether the agent or any of its descendants is working."""
        return self._turn_start is not None or any(
            row["pending"] is not None for row in status_bar.live_descendants(self.rows, self.id)
        )

    @property
    def input_hint(self) -> str:
        """The prompt of the open question, or "" if there is no open question."""
        if self._leaving:
            return approvals.LEAVE
        return self.questions.input_hint or self.commands.input_hint

    @property
    def question_id(self) -> str:
        """The identity of the open question, or "" if there is no open question."""
        return "leaving" if self._leaving else self.questions.id

    # Input.

    def is_choice(self, typed: str) -> bool:
        """Return whether `typed` answers the open question or is a line to collect, and is no prompt or command."""
        return self._leaving or self.commands.pasting or self.questions.is_answer(typed)

    async def process_input(self, typed: str, *, follow_up: bool = False, question_id: str | None = None) -> None:
        """Process the input `typed`. Errors are shown in the output.

        While an approval question is open, input that is not an answer is sent as usual, and the question stays open.
        `question_id` is the question that was open when the user typed the input. If this question is no longer open,
        the input becomes the draft.
        """
        if question_id and question_id != self.question_id:
            self._add_to_draft(typed)
            self.changed()
            return
        try:
            if self._leaving:
                await self._finish_leaving(typed)
            elif self.questions.is_answer(typed):
                await self.questions.answer(typed)
            else:
                open_question = self.questions.id
                await self._prompt_or_command(typed, follow_up=follow_up)
                if open_question and open_question == self.questions.id:
                    self.output.note("  (the question is still open)", "ask")
        except CommandError as failure:
            self._fail(failure)
        self.changed()

    async def _prompt_or_command(self, typed: str, *, follow_up: bool) -> None:
        if self.commands.accepts(typed):
            await self._command(typed)
        elif typed.strip():
            async with self._input_order.turn() as is_current:
                if is_current:
                    await self.send_prompt(unescape(typed), follow_up=follow_up)
                else:
                    self._restore_draft(typed)

    async def _command(self, typed: str) -> None:
        if not (may_switch := self.commands.may_switch(typed)) and not self._input_order.is_switching:
            await self.commands.run(typed)  # a command may take long; other input is accepted at the same time
            return
        async with self._input_order.turn() as is_current:
            if not is_current:
                self._restore_draft(typed)
            elif may_switch:
                async with self._input_order.move() as mark_missed:
                    await self.commands.run(typed)
                    if self.failed:
                        mark_missed()
        if is_current and not may_switch:
            await self.commands.run(typed)

    def _restore_draft(self, typed: str) -> None:
        """Restore the input `typed` as the draft.

        The input was meant for an agent, but the switch to that agent failed.
        """
        self._add_to_draft(typed)
        self.output.note("not sent: the text was for another agent", "error")

    def _add_to_draft(self, typed: str) -> None:
        """Add `typed` to the draft, on a separate line."""
        self.draft = f"{self.draft}\n{typed}" if self.draft else typed

    def _fail(self, failure: CommandError) -> None:
        self.failed = True
        self.output.note(f"{failure.kind}: {failure}", "error")

    async def send_prompt(self, typed: str, *, follow_up: bool = False) -> None:
        """Send a prompt to the agent. While the agent works, send a steering message or, with `follow_up`, a follow-up.

        Raises CommandError.
        """
        text, unknown = self.pastes.unfold(typed)
        if unknown:
            self.output.note(
                f"{unknown[0]} is no longer available, and nothing was sent: paste the text again", "error"
            )
            self.draft = typed
            return
        if not self.connection.watching:
            self._watch()
        self.echo(format_prompt(typed))
        if self._turn_start is not None:
            queued = await self.connection.call("steer", ref=self.id, text=text, follow_up=follow_up)
            if queued.get("steer_id"):
                self._steers.add(queued["steer_id"])
                self.output.note(
                    "  (delivered at the end of the turn)" if follow_up else "  (delivered before the next step)"
                )
            return
        await self._submit(text)

    async def _submit(self, text: str) -> None:
        request_id = os.urandom(8).hex()
        self._own_requests.add(request_id)
        self._set_working()
        try:
            await self.connection.call("submit", ref=self.id, prompt=text, request_id=request_id)
        except CommandError as failure:
            self._set_idle()
            if failure.kind != BUSY:
                raise
            self._set_working()
            await self.connection.call("steer", ref=self.id, text=text)

    def _set_working(self) -> None:
        self._is_new = False
        if self._turn_start is None:
            self._turn_start = self.clock()
        self.idle.clear()

    def _set_idle(self) -> None:
        self._turn_start = None
        self.idle.set()
        self.changed()

    # Events.

    def _watch(self, messages: int = 0) -> None:
        """Start watching the agent. The watch begins with the last `messages` messages of its conversation."""
        self._history_shown = asyncio.Event()
        if not messages:
            self._history_shown.set()
        request = {"ref": self.id, "approve": self.questions.wanted, "progress": True, "messages": messages}
        self.connection.watch(request, self.event, self._lost)

    def _lost(self, failure: CommandError) -> None:
        self._turn_log.show_disconnect()
        self._fail(failure)
        self.output.note("finished steps are kept; the next prompt continues from there")
        self.questions.clear()  # questions that are still open are sent again
        self._history_shown.set()
        self._set_idle()

    def event(self, event: dict[str, Any]) -> None:
        """Show the event."""
        kind = event["kind"]
        if kind == "began":
            self._set_working()
            self._started_here = event["request_id"] in self._own_requests
            self.run_in_background(self.refresh_rows())
            self._turn_log.show_start(event)
        elif kind == "ended":
            self._ended(event)
        elif kind == "question":
            self.questions.add(event)
        elif kind == "question_over":
            self.questions.expire(event["id"])
        elif kind == "call":
            self._turn_log.show_call(event)
        elif kind == "spoken":
            self._turn_log.show_history(event["messages"], event["before"])
            self._history_shown.set()
        elif kind == "so_far":
            self._turn_log.show_earlier_events(event)
        else:
            self._turn_log.show_event(event)
        self.changed()

    def _ended(self, event: dict[str, Any]) -> None:
        self._turn_log.show_end(event)
        self.failed = event["error"] is not None or self._has_denied(event["reply"])
        self.questions.remove_agent(self.id)
        self._turn_start = None
        self.run_in_background(self._after_turn())

    def _has_denied(self, reply: dict[str, Any] | None) -> bool:
        """Report calls that were denied because no user could be asked. Return whether there were such calls."""
        if self._chose_deny or reply is None or not reply["denied"]:
            return False
        self.output.note(denied_note(reply["denied"]), "error")
        return True

    async def _after_turn(self) -> None:
        """After a turn, collect the reply. Send messages that arrived too late for the turn as a prompt."""
        try:
            if self._started_here:
                reply = await self.connection.call("collect", ref=self.id, timeout=0.0)
                if note := worktree_note(reply):
                    self.output.note(note)
        except CommandError:
            pass  # the next turn is running, or the query failed
        finally:
            if self._turn_start is None:
                self._set_idle()
        await self.refresh_rows()
        self.run_in_background(self.commands.refresh())
        steers, self._steers = self._steers, set()
        if not steers or self._turn_start is not None:
            return
        queued = (await self.connection.call("queue", ref=self.id))["waiting"]
        own_ids = [each["id"] for each in queued if each["id"] in steers]
        if own_ids:
            removed = await self.connection.call("clear_queue", ref=self.id, ids=own_ids)
            if text := "\n\n".join(each["text"] for each in removed["waiting"]):
                await self._send_late(text)

    async def _send_late(self, text: str) -> None:
        """Send late messages as a prompt.

        If the prompt cannot be sent, the messages become the draft. Raises CommandError.
        """
        try:
            await self._submit(text)
        except CommandError:
            self.draft = text
            raise

    # Ctrl-C and leaving.

    async def interrupt(self, *, typed: bool = False) -> str:
        """Handle Ctrl-C and return its meaning. If the meaning is `clear`, the caller clears the input.

        The method does not wait for a running command.
        """
        if self._leaving:
            self._leaving = False
            return "stay"
        if self.commands.pasting:
            self.commands.drop()
            self.output.note("these lines are not sent")
            self.changed()
            return "clear"
        if self.commands.running and self._turn_start is None:
            self.commands.stop()
            return "stop"
        meaning = self._interrupts.meaning(self.clock(), typed=typed, working=self._turn_start is not None)
        try:
            if meaning == "cancel":
                self.output.note("the turn ends at its next safe point; Ctrl-C again ends it at once")
                await self.connection.call("cancel", ref=self.id)
            elif meaning == "kill":
                self.output.note("the turn is ended")
                await self.connection.call("cancel", ref=self.id, hard=True)
            elif meaning == "warn":
                self.output.note("Ctrl-C again, or Ctrl-D, leaves")
            elif meaning == "leave":
                await self.leave()
        except CommandError as failure:
            self.output.note(f"{failure.kind}: {failure}", "error")
        self.changed()
        return meaning

    async def leave(self) -> None:
        """Leave the chat. If subagents are alive or the agent is working, ask the user first."""
        await self.refresh_rows()
        live_rows = status_bar.live_descendants(self.rows, self.id)
        if not live_rows and self._turn_start is None:
            await self._finish_leaving("keep")
            return
        if self._leaving:
            return
        self._leaving = True
        for row in live_rows:
            activity = row["activity"] or row["status"]
            self.output.note(f"  {row['seq']} {row['name']}: {activity}", "ask")
        status_text = f"{self.agent['name']} is at work" if self._turn_start is not None else ""
        subagents_text = f"{len(live_rows)} of its subagents are alive" if live_rows else ""
        self.output.note("; ".join(filter(None, (status_text, subagents_text))), "ask")
        self.changed()

    async def _finish_leaving(self, typed: str) -> None:
        choice = approvals.parse_leave_answer(typed)
        if choice is None:
            self.output.note("not a valid answer", "error")
            return
        self._leaving = False
        if choice == "stay":
            return
        try:
            if choice == "end":
                await self._end_all()
            self.output.note(await self._leave_message())
        except CommandError as failure:
            self._fail(failure)  # the chat ends even if the daemon does not answer
        self.done.set()

    async def _end_all(self) -> None:
        """End the turn and kill the agent's descendants. Raises CommandError."""
        if self._turn_start is not None:
            await self.connection.call("cancel", ref=self.id, hard=True)
        if live_ids := [row["id"] for row in status_bar.live_descendants(self.rows, self.id)]:
            await self.connection.call("kill", refs=live_ids)

    async def _leave_message(self) -> str:
        """Return the line that tells the user how to resume the chat. Discard the agent if it has no conversation."""
        row = await self.connection.call("state", ref=self.id)
        if row["status"] == "killed":
            return f"agent {row['seq']} ({row['name']}) was ended: orch resume {row['seq']} makes it usable again"
        if await self.discard_unused():
            return "no prompt was sent, so nothing is kept"
        return f"agent {row['seq']} ({row['name']}) is kept: orch chat {row['seq']} continues the chat"

    async def discard_unused(self) -> bool:
        """Discard the agent if it was created for this chat and was never used.

        Return whether the agent was discarded. Raises CommandError.
        """
        is_new, self._is_new = self._is_new, False
        return is_new and await self._discard(self.id)

    async def _discard(self, id: str) -> bool:
        details, rows = await self.connection.call("show", ref=id, messages=1), await self.connection.call("list")
        row = details["agent"]
        if (
            details["messages"]
            or row["queries"]
            or row["pending"] is not None
            or row["title"]
            or status_bar.live_descendants(rows, id)
        ):
            return False
        await self.connection.call("kill", refs=[id])
        return True

    def run_in_background(self, coroutine: Any) -> None:
        """Run the coroutine `coroutine` in the background. If the coroutine fails, show its error."""
        task = asyncio.ensure_future(coroutine)
        task.add_done_callback(self._report_failure)

    def _report_failure(self, task: asyncio.Future[Any]) -> None:
        if not task.cancelled() and isinstance(failure := task.exception(), CommandError):
            self.output.note(f"{failure.kind}: {failure}", "error")
            self.changed()
