"""Assessments and reflections with the real SDKs: their models, requests and cost."""

from __future__ import annotations

import json
from pathlib import Path

from orch import AsyncOrchestrator, Config, HooksConfig
from orch_protocol.core.phases import Assess, Reflect
from wire.model_server import ModelServer, say
from wire.test_end_to_end import MODEL, environment

OTHER = "anthropic:claude-haiku-4-5"


async def test_another_model_assesses_and_reflects(server: ModelServer, tmp_path: Path) -> None:
    """The other model gets separate requests, with the instructions of hooks.

    The agent gets the notes of the other model, and the usage of all requests counts for the agent.
    """
    phases = HooksConfig(assess=Assess("model", model=OTHER), reflect=Reflect("model", model=OTHER))
    used = {"input": 1000, "output": 100}
    server.script += [
        say(json.dumps({"note": "Mind the pump."}), usage=used),
        say("Done.", usage=used),
        say(json.dumps({"verdict": "again", "note": "No test ran."}), usage=used),
        say("Done indeed.", usage=used),
        say(json.dumps({"verdict": "done"}), usage=used),
    ]
    async with AsyncOrchestrator(
        config=Config(MODEL, hooks=phases), home=tmp_path / "home", env=environment(server)
    ) as root:

        @root.on("before_reflect")
        def strict(event, _ctx):  # type: ignore[no-untyped-def]
            return event.patch(instructions="Be strict.")

        agent = await root.spawn("Work", tools=["read_file"])
        reply = await agent.query("Tidy up")
        assert (reply.text, reply.steps, reply.usage.model_calls) == ("Done indeed.", 2, 5)
        assert reply.usage.cost_known
        assert (await agent.state()).usage == reply.usage
    assert server.refused == []
    asked = [json.dumps(request.body) for request in server.requests]
    models = [request.body["model"] for request in server.requests]
    assert models == [*(model.partition(":")[2] for model in (OTHER, MODEL) * 2), OTHER.partition(":")[2]]
    assert "You assess a prompt" in asked[0]
    assert "Tidy up" in asked[0]
    assert "Mind the pump." in asked[1]
    assert "Be strict." in asked[2]
    assert "about to answer:\\nDone." in asked[2]
    assert "No test ran." in asked[3]
    assert reply.usage.output_tokens == 500
