"""The workspace of one agent in its process. The session records the results of calls and changed files.

The session also builds the prompt block. Changes are recorded as entries of the transcript.
"""

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
from orch_protocol.core.values import BoundName
from orch_protocol.core.workspace import (
    Artifact,
    InvalidateArtifacts,
    KeepArtifact,
    PinArtifacts,
    Step,
    TouchArtifacts,
    WorkspaceSpec,
)
from orch_protocol.policy.builtin_tools import FILE_WRITERS

from ..session.entry_codec import timestamp
from ..session.transcript import Transcript
from ..tools.api.base import ToolContext
from ..tools.dispatch.result_limits import text_in
from ..tools.dispatch.toolbox import CallOutcome
from ..tools.python.bound_names import bound_names
from .capture import artifact_of, handle_read, handle_shown, path_argument, paths_read
from .python_cells import PythonCell, invalidate_unbound, steps_of
from .ranking import WorkspaceText, workspace_text
from .source_files import artifact_path, changed_artifacts, read_file_state
from .state import Workspace, artifacts_to_prune, resolve_names

__all__ = ["WorkspaceSession"]

DISK_SECONDS: Final = 1.0
WRITTEN: Final = "{path} was written by {tool} in turn {turn}"


class WorkspaceSession:
    """The workspace of the agent with this `transcript`, configured by `spec`.

    `count_tokens` returns the number of tokens of a text.
    """

    def __init__(
        self, spec: WorkspaceSpec, context: ToolContext, transcript: Transcript, count_tokens: Callable[[str], int]
    ) -> None:
        self._spec, self._context, self._transcript, self._count_tokens = spec, context, transcript, count_tokens
        self._cwd = context.cwd
        self._query = self._prompt = ""
        self._block: str | None = None
        """The block of the last request in this turn. None if the block may be outdated."""
        self._workspace, self._applied_count = Workspace(), 0
        self._applied_entries: list[object] | None = None
        """The list of data from which the workspace was computed. The first `_applied_count` items were used."""
        self._pending: list[tuple[ToolUse, CallOutcome, str]] = []
        self._names: dict[str, BoundName] = {}
        """The bindings after the last call of run_python in this process."""

    @property
    def workspace(self) -> Workspace:
        """The workspace on the current branch of the conversation."""
        entries = self._transcript.session.workspace_data
        if entries is not self._applied_entries:  # the conversation changed to another branch
            self._applied_entries, self._applied_count, self._workspace = entries, 0, Workspace()
        for data in entries[self._applied_count :]:
            self._workspace.apply_entry(data)
        self._applied_count = len(entries)
        return self._workspace

    @property
    def turn(self) -> int:
        """The number of the running turn, or of the next turn if no turn is running."""
        return self._transcript.session.turns + 1

    def turn_began(self, query: str, prompt: str) -> None:
        """From now on, assign new artifacts to the query `query`, whose text is `prompt`."""
        self._query, self._prompt, self._block = query, prompt, None

    def add_results(self, calls: Sequence[ToolUse], outcomes: Sequence[CallOutcome], shown: Sequence[str]) -> None:
        """Queue the results of a step's calls: the complete results, and the results that the model sees."""
        self._block = None
        self._pending += zip(calls, outcomes, shown, strict=True)

    async def record_results(self) -> None:
        """Record the results of the calls so far.

        Raise StoreError if recording fails. Results are dropped if the disk does not answer in time.
        """
        if self._pending:
            await self._record_pending(check_files=False)

    async def prompt_block(self) -> str:
        """Mark stale artifacts, drop old artifacts, and return the block for the next request.

        Raise StoreError if recording fails.
        """
        if self._block is None:
            check_files = bool(self._pending) or any(each.files and not each.stale for each in self.workspace)
            if check_files:
                await self._record_pending(check_files=True)
            self._block = self._prune_and_render() if len(self.workspace) else ""
        return self._block

    async def _record_pending(self, *, check_files: bool) -> None:
        """Record the queued results. If `check_files` is True, also check files for changes.

        One thread does both, because starting another thread would take longer than the work.
        """
        pending, self._pending = self._pending, []
        try:
            ran = any(call.name == "run_python" for call, _, _ in pending)
            async with asyncio.timeout(DISK_SECONDS):
                after = await bound_names(self._context) if ran and self._spec.capture_values else {}
                steps = await asyncio.to_thread(self._compute_steps, pending, after, check_files=check_files)
            self._record(steps)
        except StoreError:
            raise
        except TimeoutError:
            consequence = "changes of the files that were read are not tracked" if pending else "files may have changed"
            print(f"workspace: the disk or the tool host did not answer in time: {consequence}", flush=True)
        except Exception:
            traceback.print_exc()  # A turn must not fail because of the workspace.

    def _prune_and_render(self) -> str:
        spec = self._spec
        self._record(invalidate_unbound(self.workspace, self._names, spec.max_summary_chars))
        self._record(
            artifacts_to_prune(
                self.workspace, self.turn, turns=spec.prune_turns, bytes=spec.prune_bytes, count=spec.prune_count
            )
        )
        return self.rendered().text

    def rendered(self) -> WorkspaceText:
        """Return the block for a request."""
        view = self._transcript.session.view
        visible = {
            block.id
            for message in view
            if message.role == "assistant"
            for block in message.content
            if isinstance(block, ToolUse)
        }
        return workspace_text(
            self.workspace, self._prompt, self.turn, self._spec.budget_tokens, self._count_tokens, visible=visible
        )

    def pin(self, name: str, *, pinned: bool = True) -> Artifact:
        """Pin or unpin an artifact, and return it.

        Raise ConfigError for an unknown name, and StoreError if recording fails.
        """
        names = resolve_names(self.workspace, name)
        if len(names) != 1:
            candidates = ", ".join(names or list(self.workspace.artifacts)[-8:]) or "nothing"
            why = "may be any of" if names else "is not in the workspace, which contains:"
            raise ConfigError(f"{name!r} {why} {candidates}")
        self._record([PinArtifacts((names[0],), pinned)])
        self._block = None
        return self.workspace.artifacts[names[0]]

    def _record(self, steps: Iterable[Step]) -> None:
        if steps := tuple(steps):
            self._transcript.workspace(steps, self._query)

    # The following methods run in a thread.

    def _compute_steps(
        self, pending: Sequence[tuple[ToolUse, CallOutcome, str]], after: dict[str, BoundName], *, check_files: bool
    ) -> list[Step]:
        """Return the steps for the results of calls.

        If `check_files` is True, also return the steps for changed files.
        """
        steps = self._steps_of_calls(pending, after) if pending else []
        if not check_files:
            return steps
        updated = Workspace()
        updated.artifacts = dict(self.workspace.artifacts)
        for step in steps:
            updated.apply(step)
        return [*steps, *changed_artifacts(self._cwd, [each for each in updated if each.files and not each.stale])]

    def _steps_of_calls(
        self, pending: Sequence[tuple[ToolUse, CallOutcome, str]], after: dict[str, BoundName]
    ) -> list[Step]:
        """Return the steps for the results of calls, in order."""
        workspace = Workspace()
        workspace.artifacts = dict(self.workspace.artifacts)
        steps: list[Step] = []
        cells: list[PythonCell] = []
        for call, outcome, shown in pending:
            if call.name == "run_python" and outcome.ran:
                code = str(call.input.get("code", ""))
                cells.append(PythonCell(code, self._make_origin(call, outcome), not outcome.result.is_error))
            else:
                found = self._steps_of_call(call, outcome, shown, workspace)
                for step in found:
                    workspace.apply(step)
                steps += found
        if cells and self._spec.capture_values:
            read_state, limit = partial(read_file_state, self._cwd), self._spec.max_summary_chars
            steps += steps_of(cells, self._names, after, workspace, read_state, limit=limit)
            self._names = after
        return steps

    def _steps_of_call(self, call: ToolUse, outcome: CallOutcome, shown: str, workspace: Workspace) -> list[Step]:
        """Return the steps for the result of one call."""
        if not outcome.ran or outcome.result.is_error:
            return []
        steps: list[Step] = []
        for path in {*outcome.files_changed, *([path_argument(call.input)] if call.name in FILE_WRITERS else [])}:
            changed_path = artifact_path(self._cwd, path)
            if users := tuple(
                each.name for each in workspace if any(state.path == changed_path for state in each.files)
            ):
                steps.append(
                    InvalidateArtifacts(users, WRITTEN.format(path=changed_path, tool=call.name, turn=self.turn))
                )
        if handle := handle_read(call.name, call.input):
            steps.append(TouchArtifacts(tuple(each.name for each in workspace if each.handle == handle), self.turn))
        if not self._spec.capture_results:
            return steps
        full_text = text_in(outcome.result)
        input = dict(call.input)
        if path_argument(input):
            input["path"] = artifact_path(self._cwd, path_argument(input))
        found = artifact_of(call.name, input, full_text, limit=self._spec.max_summary_chars)
        if found is None:
            return steps
        states = (read_file_state(self._cwd, path) for path in paths_read(call.name, input, full_text))
        files = tuple(state for state in states if state is not None)
        origin, previous = self._make_origin(call, outcome), workspace.artifacts.get(found.name)
        artifact = replace(
            origin,
            name=found.name,
            kind=found.kind,
            summary=found.summary,
            arguments=found.arguments,
            size=found.size,
            files=files,
            handle=handle_shown(shown) if shown != full_text else "",
        )
        if artifact.kind == "file" and files:
            artifact = replace(artifact, size=files[0].size)  # The result may show only a part of the file.
        is_unchanged = previous is not None and bool(files) and files == previous.files
        return [*steps, KeepArtifact(artifact, is_unchanged)]

    def _make_origin(self, call: ToolUse, outcome: CallOutcome) -> Artifact:
        """Return an artifact that has no name. It describes the origin of the results of `call`."""
        return Artifact(
            "",
            "",
            tool=call.name,
            query=self._query,
            call=call.id,
            turn=self.turn,
            at=timestamp(),
            used=self.turn,
            untrusted="untrusted" in bits_in(outcome.taint_labels),
        )
