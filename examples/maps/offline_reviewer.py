"""A model for the example `review.py`, which needs no key. It reads the source text in the prompt."""

import ast
import json
from collections.abc import Iterator

from orch import BackendInfo, BackendRequest, CustomBackend, Text, Usage


class OfflineReviewer(CustomBackend):
    """Answers with the JSON that `review.py` asks for."""

    def respond(self, request: BackendRequest) -> Iterator[str | Usage]:
        """Yield the review of the source text between the two lines `~~~` of the prompt."""
        prompt = "\n".join(block.text for block in request.messages[-1].content if isinstance(block, Text))
        source = prompt.split("~~~\n")[1]
        functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        undocumented = [each.name for each in functions if not ast.get_docstring(each)]
        yield json.dumps({"lines": len(source.splitlines()), "undocumented": undocumented})
        yield Usage(len(prompt) // 4, 20)

    def info(self) -> BackendInfo:
        """Return the provider and the model."""
        return BackendInfo("offline_reviewer", "counter", context_limit=100_000)
