"""Taking away what was said to agents whose sessions were deleted: from the journal, then from the disk."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from orch_protocol.core.errors import OrchError
from orch_worker.system.files import io_error

from ...archival.store.deletion import remove_sessions
from ...tree.journal.entries import ContentDeleted
from ...tree.rules.deletions import redacted

if TYPE_CHECKING:
    from ...supervisor.supervisor import Supervisor

__all__ = ["finish_deletions"]


async def finish_deletions(root: Supervisor) -> None:
    """Take away what may be there still: that of a root which was killed as it did so, too. Raises StoreError.

    A folder that cannot be removed is for the next one who does this.
    """
    nodes = root.tree.agents
    if not nodes.going:
        return
    await root.disk.rewrite(redacted)
    for id, folder in list(nodes.going.items()):
        with contextlib.suppress(OrchError):
            await root.disk.do(_removed, Path(folder), root.workers.log(id))
            root.note(ContentDeleted(at=root.clock(), id=id, session="gone"))


def _removed(folder: Path, log: Path) -> None:
    """Remove the session folder, and the log of its processes. Raises LockedError, StoreError."""
    try:
        remove_sessions(folder.parent, [folder.name])
        log.unlink(missing_ok=True)
    except OSError as error:
        raise io_error("remove", folder, error) from error
