"""A model server for the example `agent.py`, which needs no key. It speaks the Messages API on the loopback interface.

python examples/own_loop/offline_model.py        prints its address, and serves until its standard input ends
"""

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def blocks(request: dict) -> list[dict]:
    """Return the answer: a call for the text or the file that the question names, or the beginning of a result.

    A text is searched only if the request offers the tool, which it does after the first turn was archived.
    """
    content = request["messages"][-1]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    results = [part["content"] for part in parts if part["type"] == "tool_result"]
    if results:
        text = results[0] if isinstance(results[0], str) else results[0][0]["text"]
        return [{"type": "text", "text": "\n".join(text.splitlines()[:3])}]
    question = "\n".join(part["text"] for part in parts)
    if not (quoted := re.search(r"'(.+)'\?", question)):
        call = ("read_file", {"path": re.search(r"What is in (.+)\?", question)[1]})
    elif any(tool["name"] == "search_archive" for tool in request["tools"]):
        call = ("search_archive", {"query": quoted[1]})
    else:
        return [{"type": "text", "text": "Nothing is archived yet. The conversation still contains each file."}]
    identifier = f"call_{len(request['messages'])}"
    return [{"type": "tool_use", "id": identifier, "name": call[0], "input": call[1]}]


class Handler(BaseHTTPRequestHandler):
    """Answers requests without streaming."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer one request. Four characters count as one token."""
        body = self.rfile.read(int(self.headers["content-length"]))
        content = blocks(json.loads(body))
        reply = {"id": "msg_1", "type": "message", "role": "assistant", "model": "offline", "content": content}
        reply["stop_reason"] = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
        reply["usage"] = {"input_tokens": len(body) // 4, "output_tokens": 20}
        answer = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextmanager
def serving() -> Iterator[str]:
    """Serve in a thread, and yield the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


if __name__ == "__main__":
    with serving() as url:
        print(url, flush=True)
        sys.stdin.read()
