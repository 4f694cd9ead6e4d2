"""The time of a request without a template.

A new interpreter imports one SDK, sends one request and prints the answer. Usage: fresh_asker.py anthropic|openai URL
MODEL
"""

from __future__ import annotations

import sys


def ask_anthropic(url: str, model: str) -> str:
    """Return the streamed answer of the Messages API at `url`."""
    import anthropic

    client = anthropic.Anthropic(api_key="k", base_url=url)
    with client.messages.stream(model=model, max_tokens=1000, messages=[{"role": "user", "content": "hi"}]) as stream:
        return "".join(stream.text_stream)


def ask_openai(url: str, model: str) -> str:
    """Return the streamed answer of the Chat Completions API at `url`."""
    import openai

    client = openai.OpenAI(api_key="k", base_url=f"{url}/v1")
    stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], stream=True)
    return "".join(event.choices[0].delta.content or "" for event in stream if event.choices)


if __name__ == "__main__":
    sdk, address, name = sys.argv[1:]
    print({"anthropic": ask_anthropic, "openai": ask_openai}[sdk](address, name), flush=True)
