"""The model of the demo's map, which needs no key: a program that reads the file in the question, and counts."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Final

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse
from orch_worker.backends.base import BackendInfo
from orch_worker.backends.custom.contract import BackendRequest, CustomBackend, ResponseItem

__all__ = ["FileReader"]

FILE: Final = re.compile(r"[\w./-]+\.py\b")
RESPONSE_SECONDS: Final = 0.1
"""Models take time to respond. Without a delay, the agents would not work at the same time."""


class FileReader(CustomBackend):
    """Calls `read_file`, and answers with the JSON of `fan_out.Review`."""

    def respond(self, request: BackendRequest) -> Iterator[ResponseItem]:
        """Yield the call, or the review of the file in the result."""
        request.cancelled.wait(RESPONSE_SECONDS)
        last = request.messages[-1]
        results = [block for block in last.content if isinstance(block, ToolResult)]
        if results:
            yield json.dumps(_review(_source(results[0])))
        else:
            yield ToolUse("read", "read_file", {"path": _file(last)})

    def info(self) -> BackendInfo:
        """Return the provider and the model."""
        return BackendInfo("demo", "file_reader", context_limit=100_000)


def _file(message: Message) -> str:
    """Return the last file that the question names, or ""."""
    text = "\n".join(block.text for block in message.content if isinstance(block, Text))
    return next(reversed(FILE.findall(text)), "")


def _source(result: ToolResult) -> str:
    """Return the text of the file without the line numbers of `read_file`."""
    text = "\n".join(block.text for block in result.content if isinstance(block, Text))
    return "\n".join(line.partition("\t")[2] for line in text.splitlines())


def _review(source: str) -> dict[str, object]:
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    undocumented = [each.name for each in functions if not ast.get_docstring(each)]
    return {"functions": len(functions), "undocumented": undocumented}
