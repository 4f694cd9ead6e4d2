"""Service that exports values of agents as data files, to their parents and to the user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import NoValueError
from orch_protocol.core.ids import new_id
from orch_protocol.core.taint import inherited_labels, join_labels
from orch_protocol.core.values import ExportResult, ExportValue, ValueInfo
from orch_protocol.services.resources.values import TAKE_VALUE, TakenValue, TakeValue
from orch_worker.tools.values.store import FOLDER, NAME

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ..agents.processes import request_worker
from ..archives.recall import find_agent_or_holder
from ..checks.local_only import HideErrorDetails
from ..checks.taint import label_command
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["take_value"]

TIMEOUT_SECONDS: Final = 60.0


@handles(TAKE_VALUE)
async def take_value(root: Supervisor, caller: Caller, params: TakeValue) -> TakenValue:
    """Return the file of a value of an agent. A variable name or a handle selects the value. No process is started.

    Raises NoValueError, AgentError, QueryTimeoutError.
    """
    node = await find_agent_or_holder(root, caller, params.ref, *TAKE_VALUE.fields.refs["ref"])
    with HideErrorDetails(root, caller, node):
        if node.is_holder:
            raise NoValueError(
                f"{params.ref!r} is an archive, and archives have no variables: read or search its messages"
            )
        exported = await _export(root, node, params.name)
        if NAME.fullmatch(exported.file) is None:
            raise NoValueError(f"agent {node.spec.name!r} returned a path outside its stash")
        reply = node.last.reply if node.last is not None else None
        marks = join_labels(exported.marks, reply.marks) if reply is not None else exported.marks
        exported = replace(exported, marks=marks, local=exported.local or node.spec.local)
        path = Path(node.spec.folder) / FOLDER / exported.file
        if caller.agent_id is not None:  # the caller's process may not be allowed to read other agents' folders
            path = await root.disk.do(_copy, path, root.workers.spool(caller.agent_id))
        label_command(root, caller, inherited_labels(exported.marks, node.spec.id))
        return TakenValue(node.spec.id, params.name, str(path), exported)


def _copy(path: Path, spool: Path) -> Path:
    """Return a copy of the file `path` in `spool`. The caller removes the copy. Raises NoValueError."""
    copy = spool / f"value-{new_id()}"
    try:
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(path, copy, follow_symlinks=False)
        except OSError:  # the spool is on another file system, or the file system has no hard links
            shutil.copyfile(path, copy, follow_symlinks=False)
    except OSError as error:
        raise NoValueError(f"the file of the value cannot be copied: {error.strerror}") from error
    return copy


async def _export(root: Supervisor, node: AgentRecord, name: str) -> ValueInfo:
    """Return the value from the agent's process. If there is no process, return the value from the agent's folder."""
    if root.workers.peer(node.spec.id) is not None and node.status != "starting":
        reply: ExportResult | None = await request_worker(
            root, node, "export", ExportValue(name), new_id(), "exported", TIMEOUT_SECONDS
        )
        if reply is not None and reply.value is not None:
            return reply.value
    return await root.disk.do(_read_stored_value, node.spec, name)


def _read_stored_value(spec: AgentSpec, name: str) -> ValueInfo:
    from orch_worker.tools.api.base import ToolContext
    from orch_worker.tools.python.export import stored_value  # imported on first use: few roots export values
    from orch_worker.tools.values.store import HANDLE_TEXT

    context = ToolContext(Path(spec.cwd), agent_id=spec.id, folder=Path(spec.folder))
    if HANDLE_TEXT.fullmatch(name.strip()):
        return stored_value(context, name)
    raise NoValueError(
        f"agent {spec.name!r} ({spec.id}) has no process, so its Python variables are lost: let the agent "
        f"create {name!r} again. Values under handles are available"
    )
