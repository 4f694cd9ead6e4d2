"""The daemon's log: one JSON object a line, in at most two files. The one module that imports structlog.

Events have names and fields, never sentences, and never hold what agents say.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import structlog

from orch_worker.system.secrets import mask_secrets

__all__ = ["logger", "open_log"]

LOG_BYTES = 1 << 20


class _WithoutKeys(logging.Formatter):
    """Lines without `secrets`, which may grow: an error may quote what it was given."""

    def __init__(self, secrets: Collection[str]) -> None:
        super().__init__("%(message)s")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return mask_secrets(super().format(record), tuple(self._secrets))


class BoundedLog(logging.handlers.RotatingFileHandler):
    """A log of at most two files of LOG_BYTES, into which descriptors 1 and 2 go as well."""

    def _open(self) -> Any:
        stream = super()._open()
        os.fchmod(stream.fileno(), 0o600)
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
        return stream


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger `name`: `log.info("event", field=value)`. It writes nothing until a log is opened."""
    processors: list[Any] = [
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name), processors=processors, wrapper_class=structlog.stdlib.BoundLogger
    )
    return log


def open_log(path: Path, secrets: Collection[str] = ()) -> None:
    """Write this process's log to `path` from now on, without `secrets`. Raises OSError when it cannot be written."""
    handler = BoundedLog(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(_WithoutKeys(secrets))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
