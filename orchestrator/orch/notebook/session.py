"""The agent of a notebook: opened when it is first asked, shown while it works, there again after a restart."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from orch_protocol.core.errors import LockedError, OrchError
from orch_protocol.core.messages import Reply
from orch_protocol.policy.approval import Consent, Question
from orch_protocol.services.requests import AgentRow
from orch_protocol.wire.worker_messages import TurnEvent

from ..api.arguments import ScriptedBackendLike
from ..api.sync import Orchestrator, Subagent
from ..config import config as configuration
from ..config import paths
from .launcher import NotebookLauncher
from .view import View

__all__ = ["Choice", "NotebookSession"]

NAME: Final = "notebook"
TASK: Final = (
    "Help with what is done in this notebook. run_python runs in it: its names are yours, and yours are its own."
)
LOOK_SECONDS: Final = 0.1
LOOKS_A_LIST: Final = 10
LEAVE_SECONDS: Final = 5.0
TOOLS: Final = ("core", "python", "web", "tasks", "agents", "data")


class Choice(msgspec.Struct, frozen=True):
    """What the notebook's agent is to be; what is not said is as configured."""

    model: str | None = None
    preset: str | None = None
    tools: tuple[str, ...] | None = None
    max_cost: float | None = None
    backend: ScriptedBackendLike | None = None


Ask = Callable[[Question], Consent]
Show = Callable[[], object]


class NotebookSession:
    """The agent of one notebook and its orchestrator.

    `names` is the namespace that the agent's code runs in; `notebook` tells notebooks apart, such as a path: one that
    is opened again goes on with its conversation. `ask` answers what needs approval, in the thread that called `run`.
    """

    def __init__(self, names: dict[str, Any], notebook: str, ask: Ask) -> None:
        self._names = names
        self._run = f"notebook-{sha256(notebook.encode()).hexdigest()[:12]}"
        self._ask = ask
        self._orchestrator: Orchestrator | None = None
        self._launcher: NotebookLauncher | None = None
        self._agent: Subagent | None = None
        self._inbox: queue.SimpleQueue[Any] | None = None
        self.note = ""
        """What is to be said of how it was opened."""

    @property
    def agent(self) -> Subagent:
        """The agent, which is there, or begins with what is configured. Raises OrchError."""
        return self._agent or self.begin(None)

    @property
    def orchestrator(self) -> Orchestrator:
        """What supervises it and those below it, started when it is first asked for. Raises OrchError."""
        if self._orchestrator is None:
            try:
                self._orchestrator = self._open(self._run)
            except LockedError:  # the same notebook in another kernel
                self.note = "another kernel has this notebook's conversation: this one has its own, until it ends"
                self._orchestrator = self._open(None)
        return self._orchestrator

    def begin(self, choice: Choice | None) -> Subagent:
        """Return the notebook's agent: a new one as `choice` says, None: the one that was there before, if it was.

        A new agent replaces the one before, which is killed when the new one is up; its transcript stays. If the new
        one cannot be spawned, the one before goes on. Raises OrchError.
        """
        orchestrator = self.orchestrator
        rows = orchestrator.agents()
        replaced = [row.id for row in rows if row.depth == 0]
        if replaced and choice is None:
            self._own(replaced[-1])
            self._agent = orchestrator.get(replaced[-1])
            self.note = self.note or "this goes on with the conversation of before; %orch --new begins another"
            return self._agent
        self._agent = self._spawn(choice or Choice(), {row.name for row in rows})
        if replaced:
            orchestrator.kill(*replaced)
        return self._agent

    def _spawn(self, choice: Choice, taken: set[str]) -> Subagent:
        """Return a new agent that lives in this kernel, with a name that is not `taken`. Raises OrchError."""
        names = (NAME, *(f"{NAME}-{number}" for number in range(2, len(taken) + 2)))
        owner = self._launcher.own if self._launcher is not None else None
        self._own(None)
        try:
            return self.orchestrator.spawn(
                TASK,
                name=next(name for name in names if name not in taken),
                model=choice.model,
                preset=choice.preset,
                tools=choice.tools or (None if choice.preset else TOOLS),
                max_cost=choice.max_cost,
                backend=choice.backend,
                depth=0,
            )
        except BaseException:
            self._own(owner)
            raise

    def run(self, prompt: str, view: View, show: Show) -> Reply:
        """Ask the agent and return its reply; `view` is told of the turn as it goes on, and `show` is called then, in
        this thread.

        Ctrl-C, or the kernel's interrupt, cancels what the agent does and shows what it had by then; then, as after a
        second one, KeyboardInterrupt is raised. Raises OrchError.
        """
        agent = self.agent
        show()
        inbox = self._inbox = queue.SimpleQueue()
        asked: Future[Reply] = Future()
        threading.Thread(target=_query, args=(agent, prompt, inbox, asked), name="orch-notebook", daemon=True).start()
        try:
            try:
                self._watch(inbox, asked, view, show)
            except KeyboardInterrupt:
                with suppress(OrchError, TimeoutError):  # what came of it is shown
                    agent.cancel()
                    self._finish(asked, view, show)
                raise
            return self._finish(asked, view, show)
        finally:
            self._inbox = None

    def close(self) -> None:
        """End every process; the conversation stays."""
        orchestrator, self._orchestrator, self._agent = self._orchestrator, None, None
        if orchestrator is not None:
            orchestrator.close()

    def _open(self, run: str | None) -> Orchestrator:
        loaded = configuration.load(paths.current_folder(), os.environ)
        policy = loaded.config.policy
        if not policy.approval_mode:  # a person is there to be asked, as at a terminal
            policy = replace(policy, approval_mode="ask")
        return Orchestrator(
            config=replace(loaded.config, policy=policy),
            run=run,
            approve=self._approve,
            launcher=self._make_launcher,
        )

    def _make_launcher(self, run: str, folder: Path) -> NotebookLauncher:
        self._launcher = NotebookLauncher(run, folder, self._names)
        return self._launcher

    def _own(self, id: str | None) -> None:
        if self._launcher is not None:
            self._launcher.own = id

    def _watch(self, inbox: queue.SimpleQueue[Any], asked: Future[Reply], view: View, show: Show) -> None:
        """Show what happens until there is a reply, and answer what is asked meanwhile."""
        looks = 0
        while True:
            changed = False
            try:
                item = inbox.get(timeout=LOOK_SECONDS)
                while True:  # all that came at once is shown at once
                    if item is None:
                        return
                    if isinstance(item, TurnEvent):
                        view.event(item)
                        changed = True
                    else:
                        question, answer = item
                        answer.set_result(self._ask(question))
                    item = inbox.get_nowait()
            except queue.Empty:
                pass
            looks += 1
            if looks % LOOKS_A_LIST == 0 and not asked.done():
                view.below(self._children())
                changed = True
            if changed:
                show()

    def _finish(self, asked: Future[Reply], view: View, show: Show) -> Reply:
        try:
            reply = asked.result(LEAVE_SECONDS)
        except (OrchError, TimeoutError) as error:
            view.failed(str(error) or "it has not ended yet")
            show()
            raise
        view.reply(reply)
        show()
        return reply

    def _children(self) -> list[AgentRow]:
        try:
            return [row for row in self.orchestrator.agents() if self._agent is None or row.id != self._agent.id]
        except OrchError:
            return []

    def _approve(self, question: Question) -> Consent:
        """Hand a question to the thread that waits for the reply; where none does, or no longer, the answer is no."""
        inbox = self._inbox
        if inbox is None:
            return Consent(False)
        answer: Future[Consent] = Future()
        inbox.put((question, answer))
        while self._inbox is inbox:
            with suppress(TimeoutError):
                return answer.result(LOOK_SECONDS)
        return Consent(False)


def _query(agent: Subagent, prompt: str, inbox: queue.SimpleQueue[Any], asked: Future[Reply]) -> None:
    try:
        asked.set_result(agent.query(prompt, on_event=inbox.put))
    except BaseException as error:
        asked.set_exception(error)
    finally:
        inbox.put(None)
