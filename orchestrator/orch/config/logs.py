"""The daemon's log. The log contains one JSON object per line, in at most two files. Only this module imports
structlog.

Events have names and fields instead of sentences, and contain no conversation text.
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
    """Masks `secrets` in log lines, because an error may quote its input. More secrets can be added later."""

    def __init__(self, secrets: Collection[str]) -> None:
        super().__init__("%(message)s")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return mask_secrets(super().format(record), tuple(self._secrets))


class BoundedLog(logging.handlers.RotatingFileHandler):
    """A log of at most two files of LOG_BYTES each. The log also receives stdout and stderr."""

    def _open(self) -> Any:
        stream = super()._open()
        os.fchmod(stream.fileno(), 0o600)
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
        return stream


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger `name`.

    Use it as `log.info("event", field=value)`. The logger writes nothing before `open_log` is called.
    """
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
    """Start writing this process's log to `path`, with `secrets` masked.

    Raises OSError when the log cannot be written.
    """
    handler = BoundedLog(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(_WithoutKeys(secrets))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
