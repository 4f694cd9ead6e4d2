"""An agent with a loop of its own and the SDK of Anthropic, whose old turns are archived.

    python examples/own_loop/agent.py examples/bug_hunt/project

The agent reads each file of a folder, and then looks for a text that it has read. The HTTP client of the gateway
archives. With --url, `orch proxy` archives instead. Without --model, an offline model answers, which needs no key.
"""

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import anthropic
from offline_model import serving

import orch.gateway

READ_FILE = {
    "name": "read_file",
    "description": "Read a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}


def answer(client: anthropic.Anthropic, model: str, messages: list) -> str:
    """Return the answer to the last message. `messages` is the whole conversation, and grows."""
    while True:
        reply = client.messages.create(model=model, max_tokens=1000, messages=messages, tools=[READ_FILE])
        messages.append({"role": "assistant", "content": reply.content})
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        texts = [Path(call.input["path"]).read_text(errors="replace") for call in calls]
        results = zip(calls, texts, strict=True)
        content = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in results]
        messages.append({"role": "user", "content": content})


def main() -> None:
    """Print the last answer, and how many tokens were sent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--find", default="TG-4471-B", help="the text to look for")
    parser.add_argument("--url", help="the base URL of the proxy, such as http://127.0.0.1:6724/anthropic")
    parser.add_argument("--model", help="a model of Anthropic; the key is in ANTHROPIC_API_KEY")
    given = parser.parse_args()
    with ExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory())
        http = None if given.url else orch.gateway.client(state)  # the only line that archives
        url = given.url if given.url or given.model else stack.enter_context(serving())
        key = None if given.model else "offline"
        client = stack.enter_context(anthropic.Anthropic(api_key=key, base_url=url, http_client=http))
        messages: list = []
        files = [path for path in sorted(given.folder.rglob("*.*")) if path.is_file()]
        for question in [*(f"What is in {path}?" for path in files), f"Where did you read '{given.find}'?"]:
            messages.append({"role": "user", "content": question})
            last = answer(client, given.model or "offline", messages)
        print(last)
        if http is not None:
            total = orch.gateway.stats(state).total
            print(f"{len(files)} files: sent {total.sent_tokens:,} of {total.received_tokens:,} tokens")


if __name__ == "__main__":
    main()
