"""What one agent has at hand, as its process keeps track of it: what its calls bring, what files have become, what its
requests are told. What changes is an entry of its transcript."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from orch_protocol.core.errors import ConfigError, StoreError
from orch_protocol.core.messages import ToolUse
from orch_protocol.core.taint import bits_in
from orch_protocol.core.workspace import (
    Artifact,
    InvalidateArtifacts,
    KeepArtifact,
    PinArtifacts,
    Step,
    TouchArtifacts,
    WorkspaceSpec,
)

from ..session.transcript import Transcript, timestamp
from ..tools.api.base import ToolContext
from ..tools.dispatch.result_limits import text_in
from ..tools.dispatch.toolbox import CallOutcome
from ..tools.python.namespace import Namespace
from .capture import WRITES, artifact_of, first_path, handle_in, handle_of, paths_read
from .describe_value import describe_value, is_ours
from .python_cells import BoundName, PythonCell, invalidate_unbound, steps_of
from .ranking import WorkspaceText, workspace_text
from .source_files import artifact_path, changed_artifacts, mark_of
from .state import Workspace, artifacts_to_prune, resolve_names

__all__ = ["WorkspaceSession"]

LOOK_SECONDS: Final = 1.0
MOST_NAMES: Final = 500
WRITTEN: Final = "{path} was written by {tool} in turn {turn}"


class WorkspaceSession:
    """What the agent whose `transcript` that is has at hand, as `spec` says; its tools know `context`.

    `size` says how many tokens a text has.
    """

    def __init__(
        self, spec: WorkspaceSpec, context: ToolContext, transcript: Transcript, size: Callable[[str], int]
    ) -> None:
        self._spec, self._context, self._transcript, self._size = spec, context, transcript, size
        self._cwd = context.cwd
        self._query = self._prompt = ""
        self._said: str | None = None
        """What the last request of this turn was told, None when that may be another thing by now."""
        self._workspace, self._taken = Workspace(), 0
        self._said_of: list[object] | None = None
        """What the workspace is the fold of, up to so many."""
        self._pending: list[tuple[ToolUse, CallOutcome, str]] = []
        self._names: dict[str, BoundName] = {}
        """What run_python had bound when it last ran, in this process."""

    @property
    def workspace(self) -> Workspace:
        """What there is, as the path has it that the conversation took."""
        said = self._transcript.session.at_hand
        if said is not self._said_of:  # the conversation took another path
            self._said_of, self._taken, self._workspace = said, 0, Workspace()
        for data in said[self._taken :]:
            self._workspace.take(data)
        self._taken = len(said)
        return self._workspace

    @property
    def turn(self) -> int:
        """The number of the turn that runs, or that would be the next."""
        return self._transcript.session.turns + 1

    def turn_began(self, query: str, prompt: str) -> None:
        """What comes from now on does so in the query `query`, which asked `prompt`."""
        self._query, self._prompt, self._said = query, prompt, None

    def took(self, calls: Sequence[ToolUse], outcomes: Sequence[CallOutcome], shown: Sequence[str]) -> None:
        """Take in what the calls of a step came to: whole, and as the model is shown it."""
        self._said = None
        self._pending += zip(calls, outcomes, shown, strict=True)

    async def settle(self) -> None:
        """Put on record what calls have brought since. Raises StoreError; what cannot be found out in time is left."""
        if self._pending:
            await self._take_in(looks=False)

    async def part(self) -> str:
        """Return what the next request is told, after what is stale or too much by now is recorded as such.

        Raises StoreError.
        """
        if self._said is None:
            looks = bool(self._pending) or any(each.files and not each.stale for each in self.workspace)
            if looks:
                await self._take_in(looks=True)
            self._said = self._ordered() if len(self.workspace) else ""
        return self._said

    async def _take_in(self, *, looks: bool) -> None:
        """Record what calls have brought since; and, if it `looks`, what files have become. Both in one thread: to
        begin to wait for one takes longer than what is done in it."""
        pending, self._pending = self._pending, []
        try:
            ran = any(call.name == "run_python" for call, _, _ in pending)
            after = self._look() if ran and self._spec.capture_values else {}
            async with asyncio.timeout(LOOK_SECONDS):
                steps = await asyncio.to_thread(self._found, pending, after, looks=looks)
            self._record(steps)
        except StoreError:
            raise
        except TimeoutError:
            lost = "what was read is not kept track of" if pending else "files may have changed"
            print(f"workspace: the disk did not answer in time: {lost}", flush=True)
        except Exception:
            traceback.print_exc()  # a summary is not worth a turn

    def _ordered(self) -> str:
        spec = self._spec
        self._record(invalidate_unbound(self.workspace, self._names, spec.max_summary_chars))
        self._record(
            artifacts_to_prune(
                self.workspace, self.turn, turns=spec.prune_turns, bytes=spec.prune_bytes, count=spec.prune_count
            )
        )
        return self.told().text

    def told(self) -> WorkspaceText:
        """Return what a request is told of what there is."""
        view = self._transcript.session.view
        visible = {
            block.id
            for message in view
            if message.role == "assistant"
            for block in message.content
            if isinstance(block, ToolUse)
        }
        return workspace_text(
            self.workspace, self._prompt, self.turn, self._spec.budget_tokens, self._size, visible=visible
        )

    def pin(self, name: str, *, pinned: bool = True) -> Artifact:
        """Let an artifact be told of first, or no more so, and return it. Raises ConfigError, StoreError."""
        names = resolve_names(self.workspace, name)
        if len(names) != 1:
            there = ", ".join(names or list(self.workspace.artifacts)[-8:]) or "nothing"
            why = "may be any of" if names else "is none of what there is:"
            raise ConfigError(f"{name!r} {why} {there}")
        self._record([PinArtifacts((names[0],), pinned)])
        self._said = None
        return self.workspace.artifacts[names[0]]

    def _record(self, steps: Iterable[Step]) -> None:
        if steps := tuple(steps):
            self._transcript.workspace(steps, self._query)

    def _look(self) -> dict[str, BoundName]:
        """Return what the names are bound to. In the thread of the loop: nobody else binds any meanwhile."""
        bound = list(self._context.own(Namespace).bound().items())[:MOST_NAMES]
        return {name: BoundName(id(value), describe_value(value), is_ours(value)) for name, value in bound}

    # In a thread.

    def _found(
        self, pending: Sequence[tuple[ToolUse, CallOutcome, str]], after: dict[str, BoundName], *, looks: bool
    ) -> list[Step]:
        """Return what calls came to, and, if it `looks`, which files are not what they were."""
        steps = self._steps(pending, after) if pending else []
        if not looks:
            return steps
        now = Workspace()
        now.artifacts = dict(self.workspace.artifacts)
        for step in steps:
            now.apply(step)
        return [*steps, *changed_artifacts(self._cwd, [each for each in now if each.files and not each.stale])]

    def _steps(self, pending: Sequence[tuple[ToolUse, CallOutcome, str]], after: dict[str, BoundName]) -> list[Step]:
        """Return what calls came to, one after the other."""
        workspace = Workspace()
        workspace.artifacts = dict(self.workspace.artifacts)
        steps: list[Step] = []
        cells: list[PythonCell] = []
        for call, outcome, shown in pending:
            if call.name == "run_python" and outcome.ran:
                code = str(call.input.get("code", ""))
                cells.append(PythonCell(code, self._origin(call, outcome), not outcome.result.is_error))
            else:
                found = self._of(call, outcome, shown, workspace)
                for step in found:
                    workspace.apply(step)
                steps += found
        if cells and self._spec.capture_values:
            mark, most = partial(mark_of, self._cwd), self._spec.max_summary_chars
            steps += steps_of(cells, self._names, after, workspace, mark, most=most)
            self._names = after
        return steps

    def _of(self, call: ToolUse, outcome: CallOutcome, shown: str, workspace: Workspace) -> list[Step]:
        """Return what one call came to."""
        if not outcome.ran or outcome.result.is_error:
            return []
        steps: list[Step] = []
        for path in {*outcome.files_changed, *([first_path(call.input)] if call.name in WRITES else [])}:
            there = artifact_path(self._cwd, path)
            if users := tuple(each.name for each in workspace if any(mark.path == there for mark in each.files)):
                steps.append(InvalidateArtifacts(users, WRITTEN.format(path=there, tool=call.name, turn=self.turn)))
        if handle := handle_of(call.name, call.input):
            steps.append(TouchArtifacts(tuple(each.name for each in workspace if each.handle == handle), self.turn))
        if not self._spec.capture_results:
            return steps
        whole = text_in(outcome.result)
        input = dict(call.input)
        if first_path(input):
            input["path"] = artifact_path(self._cwd, first_path(input))
        found = artifact_of(call.name, input, whole, most=self._spec.max_summary_chars)
        if found is None:
            return steps
        read = (mark_of(self._cwd, path) for path in paths_read(call.name, input, whole))
        files = tuple(mark for mark in read if mark is not None)
        origin, before = self._origin(call, outcome), workspace.artifacts.get(found.name)
        kept = replace(
            origin,
            name=found.name,
            kind=found.kind,
            summary=found.summary,
            arguments=found.arguments,
            size=found.size,
            files=files,
            handle=handle_in(shown) if shown != whole else "",
        )
        if kept.kind == "file" and files:
            kept = replace(kept, size=files[0].size)  # what was shown of it may be a part
        same = before is not None and bool(files) and files == before.files
        return [*steps, KeepArtifact(kept, same)]

    def _origin(self, call: ToolUse, outcome: CallOutcome) -> Artifact:
        """Return what is to be said of whatever `call` brings."""
        return Artifact(
            "",
            "",
            tool=call.name,
            query=self._query,
            call=call.id,
            turn=self.turn,
            at=timestamp(),
            used=self.turn,
            untrusted="untrusted" in bits_in(outcome.marks),
        )
