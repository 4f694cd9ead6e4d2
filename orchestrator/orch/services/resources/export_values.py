"""Values that agents hold in their Python, handed over as files of data: to who spawned them, and to the user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from orch_protocol.agent.spec import AgentSpec
from orch_protocol.core.errors import NoValueError
from orch_protocol.core.ids import new_id
from orch_protocol.core.taint import join_labels
from orch_protocol.core.values import ExportResult, ExportValue, TakenValue, TakeValue, ValueInfo
from orch_protocol.services.resources import TAKE_VALUE
from orch_worker.tools.values.store import FOLDER, NAME

from ...policy.caller import Caller
from ...tree.agents.state import AgentRecord
from ..agents.processes import request_worker
from ..archives.recall import find_agent_or_holder
from ..checks.local_only import HideErrorDetails
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["take_value"]

SECONDS: Final = 60.0


@handles(TAKE_VALUE)
async def take_value(root: Supervisor, caller: Caller, params: TakeValue) -> TakenValue:
    """Return where the value of a name, or a handle, of an agent lies as data. No process is started for it.

    Raises NoValueError, AgentError, QueryTimeoutError.
    """
    node = await find_agent_or_holder(root, caller, params.ref, "take values of", "control")
    with HideErrorDetails(root, caller, node):
        if node.is_holder:
            raise NoValueError(
                f"{params.ref!r} is an archive, which has no names: its messages can be read and searched"
            )
        said = await _exported(root, node, params.name)
        if NAME.fullmatch(said.file) is None:
            raise NoValueError(f"agent {node.spec.name!r} names a file that is none of its stash")
        reply = node.last.reply if node.last is not None else None
        marks = join_labels(said.marks, reply.marks) if reply is not None else said.marks
        said = replace(said, marks=marks, local=said.local or node.spec.local)
        path = Path(node.spec.folder) / FOLDER / said.file
        if caller.agent_id is not None:  # the folders of other agents may be hidden from its process
            path = await root.disk.do(_copy, path, root.workers.spool(caller.agent_id))
        return TakenValue(node.spec.id, params.name, str(path), said)


def _copy(path: Path, spool: Path) -> Path:
    """Return a copy of the file `path` in `spool`, which whoever asked for it removes. Raises NoValueError."""
    copy = spool / f"value-{new_id()}"
    try:
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.link(path, copy, follow_symlinks=False)
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, copy, follow_symlinks=False)
    except OSError as error:
        raise NoValueError(f"the file of the value cannot be copied: {error.strerror}") from error
    return copy


async def _exported(root: Supervisor, node: AgentRecord, name: str) -> ValueInfo:
    """Return what the agent's process says, or what is in its folder when there is none."""
    if root.workers.peer(node.spec.id) is not None and node.status != "starting":
        answer: ExportResult | None = await request_worker(
            root, node, "export", ExportValue(name), new_id(), "exported", SECONDS
        )
        if answer is not None and answer.value is not None:
            return answer.value
    return await root.disk.do(_without_process, node.spec, name)


def _without_process(spec: AgentSpec, name: str) -> ValueInfo:
    from orch_worker.tools.api.base import ToolContext
    from orch_worker.tools.python.export import stored_value  # where a value is asked for: few roots are
    from orch_worker.tools.values.store import SPELLING

    context = ToolContext(Path(spec.cwd), agent_id=spec.id, folder=Path(spec.folder))
    if SPELLING.fullmatch(name.strip()):
        return stored_value(context, name)
    raise NoValueError(
        f"agent {spec.name!r} ({spec.id}) has no process, so its Python variables are lost: let the agent "
        f"create {name!r} again. Values under handles are available"
    )
