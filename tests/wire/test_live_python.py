"""Values under handles in requests: the model gets a marker and the parts that it reads, never the whole value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orch import AsyncOrchestrator, Config, SubagentsConfig
from wire.model_server import ModelServer, Request, call, say

MODEL = "anthropic:claude-sonnet-5-5"
ROWS = "import pandas as pd\ndf = pd.DataFrame({'n': range(2000), 's': [f'row {n}' for n in range(2000)]})\ndf"


def python(code: str) -> dict[str, Any]:
    """Return a call of run_python."""
    return {"call": "run_python", "input": {"code": code}}


def read(**input: Any) -> dict[str, Any]:
    """Return a call of read_handle."""
    return {"call": "read_handle", "input": {"handle": ".h_001", **input}}


def last_result(request: Request) -> str:
    """Return the text of the result at the end of a request."""
    block = request.body["messages"][-1]["content"][0]
    assert block["type"] == "tool_result"
    content = block["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def root(server: ModelServer, home: Path, **config: Any) -> AsyncOrchestrator:
    """Return a root whose model is at `server`."""
    env = {"ANTHROPIC_API_KEY": "k1", "ANTHROPIC_BASE_URL": server.url, "PATH": os.environ["PATH"]}
    return AsyncOrchestrator(MODEL, home=home, env=env, config=Config(model=MODEL, **config))


async def test_request_holds_marker_and_pages_of_a_value(server: ModelServer, tmp_path: Path) -> None:
    """Requests contain the marker of a table and the parts that the model reads, but never the whole table."""
    server.script += [
        call(python(ROWS)),
        call(read(op="slice", lines="1500:1502")),
        call(read(search="row 1999")),
        call(python("int(handles['h_001'].n.sum())")),
        say("Done."),
    ]
    async with root(server, tmp_path) as o:
        agent = await o.spawn("Look", tools=["run_python", "read_handle"], cwd=tmp_path)
        assert (await agent.query("Begin")).text == "Done."
    marker, page, hit, total = map(last_result, server.requests[1:])
    assert marker.startswith("[.h_001: pandas.DataFrame, 2,000 rows x 2 columns")
    assert "n | int64 | 0 | 0 to 1999" in marker
    assert page == "n | s\n1500 | row 1500\n1501 | row 1501\n[rows 1,500 to 1,502 of 2,000]"
    assert hit == "1999: 1999 | row 1999"
    assert total == str(sum(range(2000)))
    assert not any(b"row 777" in request.raw for request in server.requests)
    assert server.refused == []


async def test_value_moves_from_child_to_parent_outside_messages(server: ModelServer, tmp_path: Path) -> None:
    """A parent reads the value that its child returns under a handle, and no message contains the whole value.

    If the returned name is not bound, the parent gets the answer with a notice and no value.
    """

    def answer(request: Request) -> Any:
        text = request.raw.decode()
        step = sum(message["role"] == "assistant" for message in request.body["messages"])
        if "Make the table" in text and '"query_subagent"' not in text:
            return call(python("rows = [f'row {n}' for n in range(2000)]")) if step % 2 == 0 else say("It is made.")
        query = {"call": "query_subagent", "input": {"id": "maker", "prompt": "Make the table"}}
        steps = [
            call({"call": "spawn_subagent", "input": {"task": "Make the table", "tools": ["run_python"]}}),
            call({**query, "input": {"id": "2", "prompt": "Make the table now", "return_name": "rows"}}),
            call(read(op="tail", count=1)),
            call(python("len(handles[1])")),
            call({**query, "input": {"id": "2", "prompt": "Again", "return_name": "nothing"}}),
            say("Seen."),
        ]
        return steps[step]

    server.otherwise = answer
    async with root(server, tmp_path, subagents=SubagentsConfig(allow_nested=True)) as o:
        parent = await o.spawn("Have it made", tools=["agents", "run_python", "read_handle"], cwd=tmp_path)
        assert (await parent.query("Begin")).text == "Seen."
        assert (await parent.value("h_001"))[777:779] == ["row 777", "row 778"]
    parents = [each for each in server.requests if b'"query_subagent"' in each.raw]
    results = [last_result(each) for each in parents if b"tool_result" in each.raw]
    asked, page, length, again = results[1:]
    assert "It is made." in asked
    assert "[.h_001: list, 2,000 items" in asked
    assert page == "[1999] 'row 1999'\n[items 1,999 to 2,000 of 2,000]"
    assert length == "2000"
    assert "It is made." in again
    assert "[No value of 'nothing' was returned: no variable 'nothing'; variables: rows]" in again
    assert not any(b"row 777" in request.raw for request in server.requests)
