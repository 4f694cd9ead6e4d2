"""A process that reads one streamed answer with the SDK alone, as its documentation shows. Usage: stream_reader.py URL

The process answers each line on stdin with `{"cpu": C, "first": F}` after one request whose prompt has `size`
characters: C is the CPU time of the request in seconds, and F is the time until the first text.
"""

from __future__ import annotations

import json
import sys
import time

import anthropic


def ask(client: anthropic.Anthropic, size: int) -> float:
    """Return the seconds until the first text."""
    begin, first = time.perf_counter(), 0.0
    question = [{"role": "user", "content": "x" * size}]
    with client.messages.stream(model="m", max_tokens=9999, messages=question) as stream:  # type: ignore[arg-type]
        for _ in stream.text_stream:
            first = first or time.perf_counter() - begin
    return first


if __name__ == "__main__":
    own_client = anthropic.Anthropic(base_url=sys.argv[1], api_key="k")
    for line in sys.stdin:
        before = time.process_time()
        seconds = ask(own_client, json.loads(line).get("size", 2))
        print(json.dumps({"cpu": time.process_time() - before, "first": seconds}), flush=True)
