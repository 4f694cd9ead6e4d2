"""The model server in a thread, for programs that only know its address, and a model that reads files."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any

from orch_worker.conversation.live_subagents import ARCHIVES, HEADING
from wire.model_server import Answer, ModelServer, Request, call, say

__all__ = ["Apart", "reads_files"]

QUOTED = re.compile(r"'([^']+)'")
FILE = re.compile(r"\b[\w-]+\.\w+\b")


class Apart:
    """A ModelServer in a thread, which also answers requests without streaming. Start it with `with`."""

    def __init__(self, model: Callable[[Request], Answer], *, compatible: bool = False) -> None:
        self.server = ModelServer(otherwise=model, plain=True, compatible=compatible)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="model-server", daemon=True)

    @property
    def env(self) -> dict[str, str]:
        """The environment variables with which both SDKs connect to this server."""
        return {
            "ANTHROPIC_API_KEY": "k1",
            "ANTHROPIC_BASE_URL": self.server.url,
            "OPENAI_API_KEY": "k2",
            "OPENAI_BASE_URL": f"{self.server.url}/v1",
        }

    def __enter__(self) -> Apart:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self.server:
            self._ready.set()
            await self._stop.wait()


def reads_files(request: Request) -> Answer:
    """Answer as a model that searches its archives for quoted text, or reads the files that the question names.

    After the results, answer with the first line of each result.
    """
    turns = _turns(request.body)
    results = turns[turns.index(None) + 1 :] if None in turns else []
    question = next(text for text in reversed(turns[: len(turns) - len(results)]) if text is not None)
    if None in turns:
        return say(" | ".join((text or "").partition("\n")[0] for text in results))
    found = [{"call": "search_archive", "input": {"query": quoted}} for quoted in QUOTED.findall(question)]
    found = found or [{"call": "read_file", "input": {"path": path}} for path in FILE.findall(question)]
    return call(*found, thinking=f"About {question}") if found else say(f"You said: {question}")


def _turns(body: dict[str, Any]) -> list[str | None]:
    """Return the texts since the last question, beginning with the question. None replaces an answer with calls."""
    collected: list[str | None] = []
    for item in body.get("messages") or body["input"]:
        role, content, kind = item.get("role"), item.get("content"), item.get("type")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        results = [_text(part.get("content")) for part in parts if part.get("type") == "tool_result"]
        if kind == "function_call_output" or role == "tool":
            collected.append(_text(item.get("output") if kind else content))
        elif results:
            collected += results
        elif role == "user" and parts[0]["text"].startswith((HEADING, ARCHIVES)):
            continue  # the blocks after the conversation are not a question
        elif role == "user":
            collected = [parts[0]["text"]]
        elif item.get("tool_calls") or kind == "function_call" or any(part.get("type") == "tool_use" for part in parts):
            collected = [*collected[:1], None]
    return collected


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)
