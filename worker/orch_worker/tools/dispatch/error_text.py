"""The text of errors in tool results. The text names tools instead of shell commands, which a model cannot run."""

from __future__ import annotations

import re
from typing import Final

from orch_protocol.core.errors import OrchError

from ...system.threads import describe_exception
from ..api.base import ToolError

__all__ = ["error_for_model", "exception_text"]

TOOLS: Final = {
    "archive list": "search_archive",
    "archive read": "read_archive",
    "archive search": "search_archive",
    "collect": "collect_subagent",
    "kill": "kill_subagent",
    "list": "list_subagents",
    "query": "query_subagent",
}
"""CLI commands, and the tools with the same effect."""

_COMMAND: Final = re.compile(rf"`orch ({'|'.join(TOOLS)})\b[^`]*`")
_HINT: Final = re.compile(r"\s*(?:\([^()`]*`orch [^`]*`[^()]*\)|[;:.,]\s[^;:.`]*`orch [^`]*`[^;]*)")


def error_for_model(text: str) -> str:
    """Return the error `text`, but replace `orch` commands by tools.

    Hints about commands without a tool are removed.
    """
    if "`orch " not in text:
        return text
    return _HINT.sub("", _COMMAND.sub(lambda found: TOOLS[found[1]], text))


def exception_text(error: BaseException) -> str:
    """Return the text for the model about the exception of a tool."""
    if isinstance(error, (ToolError, OrchError)) and str(error):
        return str(error) if isinstance(error, ToolError) else error_for_model(str(error))
    return describe_exception(error)
