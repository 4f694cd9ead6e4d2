"""Service that lists the runs of a home, from their journals."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from orch_protocol.core.errors import OrchError
from orch_protocol.core.messages import Usage
from orch_protocol.services.agents.runs import LIST_RUNS, RunRow
from orch_protocol.services.service import Empty

from ...config import paths
from ...policy.caller import Caller
from ...tree.agents.state import TreeState, iso_time
from ...tree.journal.journal import JOURNAL, read_entries
from ..dispatch.handlers import handles

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["list_runs"]

WORKING: Final = ("starting", "busy")


@handles(LIST_RUNS)
async def list_runs(root: Supervisor, _caller: Caller, _: Empty) -> list[RunRow]:
    """Return the runs of the home, most recently active first. Unnamed runs are listed only while they run."""
    own = root.run_events.path.parent
    rows = await root.disk.do(_other_runs, own)
    return sorted(
        [_row(own, os.getpid(), root.tree.agents), *rows], key=lambda row: (row.last_activity, row.name), reverse=True
    )


def _other_runs(own: Path) -> list[RunRow]:
    rows = []
    for journal in own.parent.glob(f"*/{JOURNAL}"):
        folder, pid = journal.parent, paths.lock_owner(journal.parent)
        if folder == own or (pid is None and folder.name.startswith(paths.UNNAMED_RUN_PREFIX)):
            continue
        try:
            stat = journal.stat()
            row = _read_row(journal, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        except (OrchError, OSError) as error:
            row = RunRow(folder.name, str(folder), "ended", None, error=f"{error}; orch fsck examines it")
        rows.append(replace(row, state="running", pid=pid) if pid is not None else replace(row, busy=0))
    return rows


@lru_cache(maxsize=4096)
def _read_row(journal: Path, _inode: int, _modified: int, _size: int) -> RunRow:
    """Return the row of the run of `journal`, as if it had ended. Raises OrchError, OSError.

    The arguments after `journal` are part of the cache key, so a changed file is read again.
    """
    return _row(journal.parent, None, TreeState(read_entries(journal)))


def _row(folder: Path, pid: int | None, nodes: TreeState) -> RunRow:
    every = list(nodes)
    agents = [node for node in every if not node.is_holder]
    top = [node for node in agents if node.spec.parent_id is None]
    usage = sum((node.usage for node in every), Usage())
    return RunRow(
        folder.name,
        str(folder),
        "ended" if pid is None else "running",
        pid,
        agents=sum(node.status != "killed" for node in agents),
        busy=sum(node.status in WORKING for node in agents),
        cost_usd=usage.cost_usd,
        cost_known=usage.cost_known,
        ceiling_usd=usage.ceiling_usd,
        last_activity=iso_time(max(node.last_activity for node in every)) if every else "",
        cwd=top[-1].spec.cwd if top else "",
    )
