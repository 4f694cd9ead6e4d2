"""The agent of a notebook. The first prompt starts the agent; after a restart of the kernel, it continues."""

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
from orch_protocol.services.agents.status import AgentRow
from orch_protocol.wire.worker_messages import TurnEvent

from ..api.arguments import BackendLike
from ..api.sync import Orchestrator, Subagent
from ..config import config as configuration
from ..config import paths
from .launcher import NotebookLauncher
from .view import View

__all__ = ["AgentSettings", "NotebookSession"]

NAME: Final = "notebook"
TASK: Final = (
    "Help with the work in this notebook. run_python runs code in the notebook's kernel: the code can use and set the "
    "notebook's variables."
)
POLL_SECONDS: Final = 0.1
POLLS_PER_LIST: Final = 10
FINISH_SECONDS: Final = 5.0
TOOLS: Final = ("core", "python", "web", "tasks", "agents", "data")


class AgentSettings(msgspec.Struct, frozen=True):
    """Settings of the notebook's agent. None selects the configured setting."""

    model: str | None = None
    preset: str | None = None
    tools: tuple[str, ...] | None = None
    max_cost: float | None = None
    backend: BackendLike | None = None


Ask = Callable[[Question], Consent]
Show = Callable[[], object]


class NotebookSession:
    """The agent of one notebook and its orchestrator.

    `names` is the namespace in which the agent's code runs. `notebook` identifies the notebook, for example by its
    path. A notebook that is opened again continues its conversation. `ask` answers approval questions, in the thread
    that called `run`.
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
        """A note for the user about how the conversation was opened."""

    @property
    def agent(self) -> Subagent:
        """The agent of the notebook.

        If there is no agent, an agent with the configured settings is started. Raises OrchError.
        """
        return self._agent or self.begin(None)

    @property
    def orchestrator(self) -> Orchestrator:
        """The orchestrator of the agent. The orchestrator is started on first use. Raises OrchError."""
        if self._orchestrator is None:
            try:
                self._orchestrator = self._open(self._run)
            except LockedError:  # another kernel has opened the same notebook
                self.note = "this kernel uses a new conversation, because another kernel uses the earlier one"
                self._orchestrator = self._open(None)
        return self._orchestrator

    def begin(self, settings: AgentSettings | None) -> Subagent:
        """Return a new agent with `settings`. If `settings` is None, return the previous agent if there is one.

        A new agent replaces the previous agent. The previous agent is killed when the new agent is ready; its
        transcript is kept. If the new agent cannot be spawned, the previous agent continues. Raises OrchError.
        """
        orchestrator = self.orchestrator
        rows = orchestrator.agents()
        replaced = [row.id for row in rows if row.depth == 0]
        if replaced and settings is None:
            self._set_own_agent(replaced[-1])
            self._agent = orchestrator.get(replaced[-1])
            self.note = self.note or "continuing the earlier conversation; use %orch --new to start another one"
            return self._agent
        self._agent = self._spawn(settings or AgentSettings(), {row.name for row in rows})
        if replaced:
            orchestrator.kill(*replaced)
        return self._agent

    def _spawn(self, settings: AgentSettings, taken: set[str]) -> Subagent:
        """Return a new agent in this kernel. The name of the agent is not in `taken`. Raises OrchError."""
        names = (NAME, *(f"{NAME}-{number}" for number in range(2, len(taken) + 2)))
        owner = self._launcher.own_agent_id if self._launcher is not None else None
        self._set_own_agent(None)
        try:
            return self.orchestrator.spawn(
                TASK,
                name=next(name for name in names if name not in taken),
                model=settings.model,
                preset=settings.preset,
                tools=settings.tools or (None if settings.preset else TOOLS),
                max_cost=settings.max_cost,
                backend=settings.backend,
                depth=0,
            )
        except BaseException:
            self._set_own_agent(owner)
            raise

    def run(self, prompt: str, view: View, show: Show) -> Reply:
        """Send `prompt` to the agent and return its reply.

        `view` receives the events of the turn. `show` is called after each change, in this thread. Ctrl-C, or the
        kernel's interrupt, cancels the turn. The result so far is shown, and then KeyboardInterrupt is raised, also
        after a second Ctrl-C. Raises OrchError.
        """
        agent = self.agent
        show()
        inbox = self._inbox = queue.SimpleQueue()
        reply_future: Future[Reply] = Future()
        threading.Thread(
            target=_query, args=(agent, prompt, inbox, reply_future), name="orch-notebook", daemon=True
        ).start()
        try:
            try:
                self._watch(inbox, reply_future, view, show)
            except KeyboardInterrupt:
                with suppress(OrchError, TimeoutError):  # the result so far is shown
                    agent.cancel()
                    self._finish(reply_future, view, show)
                raise
            return self._finish(reply_future, view, show)
        finally:
            self._inbox = None

    def close(self) -> None:
        """End every process. The conversation is kept."""
        orchestrator, self._orchestrator, self._agent = self._orchestrator, None, None
        if orchestrator is not None:
            orchestrator.close()

    def _open(self, run: str | None) -> Orchestrator:
        loaded = configuration.load(paths.current_folder(), os.environ)
        policy = loaded.config.policy
        if not policy.approval_mode:  # a user can answer, as at a terminal
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

    def _set_own_agent(self, id: str | None) -> None:
        if self._launcher is not None:
            self._launcher.own_agent_id = id

    def _watch(self, inbox: queue.SimpleQueue[Any], reply_future: Future[Reply], view: View, show: Show) -> None:
        """Show events until the reply arrives, and answer approval questions."""
        polls = 0
        while True:
            changed = False
            try:
                item = inbox.get(timeout=POLL_SECONDS)
                while True:  # show all waiting events together
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
            polls += 1
            if polls % POLLS_PER_LIST == 0 and not reply_future.done():
                view.subagents(self._children())
                changed = True
            if changed:
                show()

    def _finish(self, reply_future: Future[Reply], view: View, show: Show) -> Reply:
        try:
            reply = reply_future.result(FINISH_SECONDS)
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
        """Pass a question to the thread that waits for the reply. If no thread waits, deny the call."""
        inbox = self._inbox
        if inbox is None:
            return Consent(False)
        answer: Future[Consent] = Future()
        inbox.put((question, answer))
        while self._inbox is inbox:
            with suppress(TimeoutError):
                return answer.result(POLL_SECONDS)
        return Consent(False)


def _query(agent: Subagent, prompt: str, inbox: queue.SimpleQueue[Any], reply_future: Future[Reply]) -> None:
    try:
        reply_future.set_result(agent.query(prompt, on_event=inbox.put))
    except BaseException as error:
        reply_future.set_exception(error)
    finally:
        inbox.put(None)
