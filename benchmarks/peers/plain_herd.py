"""One process that imports the SDK and asks COUNT times at once. It prints the same lines as herd_root.py.

Usage: plain_herd.py URL MODEL COUNT
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import median


async def main(url: str, model: str, count: str) -> None:
    """Ask for each figure."""
    begin, before = time.perf_counter(), 0.0
    import anthropic

    client = anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0)

    async def ask(texts: list[tuple[float, float]]) -> None:
        messages = [{"role": "user", "content": "go"}]
        async with client.messages.stream(model=model, max_tokens=1000, messages=messages) as stream:  # type: ignore[arg-type]
            seen = False
            async for _ in stream.text_stream:
                if not seen:
                    seen = True
                    texts.append((time.perf_counter(), time.process_time()))

    while True:
        texts: list[tuple[float, float]] = []
        await asyncio.gather(*(ask(texts) for _ in range(int(count))))
        first = 1000 * (median(text for text, _ in texts) - begin)
        print(json.dumps({"first": first, "cpu": texts[-1][1] - before}), flush=True)
        if not await asyncio.to_thread(sys.stdin.readline):
            break
        begin, before = time.perf_counter(), time.process_time()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
