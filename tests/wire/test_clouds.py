"""Models of cloud providers with the clients of the SDKs: requests, authorization and responses."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from orch import AsyncOrchestrator, Config, SubagentsConfig
from orch.config.models import keys_in
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import BackendError, ConfigError, ContextOverflowError, RateLimitError
from orch_protocol.core.messages import Image, Text, Thinking, ToolResult, text_of, tool_uses, user
from orch_worker.backends import models
from orch_worker.backends.clients.bedrock import MessageDecoder
from orch_worker.backends.http.remote import RemoteBackend
from orch_worker.backends.registry import complete, make_backend
from pictures import png
from wire.api_backends import Talk
from wire.cloud_rules import frame
from wire.model_server import ModelServer, call, fail, say

pytest.importorskip("botocore")

CLAUDE = "us.anthropic.claude-sonnet-5-5-v1:0"
AWS = {"AWS_REGION": "us-east-2", "AWS_BEARER_TOKEN_BEDROCK": "canary-bearer"}
ACCOUNT = {
    "AWS_REGION": "us-east-2",
    "AWS_ACCESS_KEY_ID": "AKIACANARY",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-key",
    "AWS_SESSION_TOKEN": "canary-session",
}
GOOGLE = {
    "CLOUD_ML_REGION": "europe-west1",
    "ANTHROPIC_VERTEX_PROJECT_ID": "p1",
    "CLOUDSDK_AUTH_ACCESS_TOKEN": "canary-token",
}
AZURE = {"AZURE_OPENAI_API_KEY": "canary-azure"}
MODELS = {
    "bedrock": (CLAUDE, AWS, "ANTHROPIC_BEDROCK_BASE_URL"),
    "vertex": ("claude-sonnet-5-5@20260101", GOOGLE, "ANTHROPIC_VERTEX_BASE_URL"),
    "azure": ("my gpt-6-luna", AZURE, "AZURE_OPENAI_ENDPOINT"),
}


Open = Callable[..., Talk]


@pytest.fixture
async def talk(server: ModelServer) -> AsyncIterator[Open]:
    """A function that opens conversations with a provider at `server`. Their connections are closed after the test."""
    opened: list[Talk] = []

    def open_one(provider: str, env: dict[str, str] | None = None) -> Talk:
        model, usual, address = MODELS[provider]
        env = (env or usual) | {address: server.url}
        spec = complete(BackendSpec(provider, model), models.load(), env, env)
        backend = make_backend(spec, keys_in(env, models.load()))
        assert isinstance(backend, RemoteBackend)
        opened.append(Talk(backend))
        return opened[-1]

    yield open_one
    for each in opened:
        await each.backend.close()


@pytest.mark.parametrize("provider", MODELS)
async def test_a_conversation_with_calls(server: ModelServer, talk: Open, provider: str) -> None:
    """Text is streamed, reasoning is sent back unchanged, a call is answered, and usage is counted."""
    reasons = provider != "azure"
    server.script.extend(
        [
            call(
                {"call": "weather", "input": {"city": "Oslo"}},
                text="Let me see.",
                thinking="hm" * (provider != "azure"),
            ),
            say("It rains.", usage={"input": 30, "output": 4}),
        ]
    )
    made = talk(provider)
    turn = await made.ask("How is the weather?")
    made.answer(turn, "rain")
    last = await made.turn()
    assert server.refused == []
    assert turn.stop_reason == "tool_use"
    assert any(isinstance(block, Thinking) for block in turn.message.content) == reasons
    assert (text_of(last.message), last.usage.input_tokens, last.usage.output_tokens) == ("It rains.", 30, 4)
    assert "".join(made.texts) == "Let me see.It rains."


@pytest.mark.parametrize("provider", MODELS)
async def test_images_of_prompts_and_results_are_sent(server: ModelServer, talk: Open, provider: str) -> None:
    """The image of a prompt and the image of a tool result are both in the next request."""
    image = Image.from_bytes(png(2, 1), "dot.png")
    server.script += [call({"call": "weather", "input": {"city": "Oslo"}}), say("A dot.")]
    made = talk(provider)
    made.backend.append_user(user(["What is this?", image]).content)
    turn = await made.turn()
    made.backend.append_tool_result([ToolResult(tool_uses(turn.message)[0].id, (Text("This:"), image))])
    await made.turn()
    assert server.refused == []
    assert server.requests[1].raw.count(image.data.encode()) == 2


async def test_requests_for_bedrock(server: ModelServer, talk: Open) -> None:
    """The path contains the model, the body contains the version, and the API key is the bearer token."""
    await talk("bedrock").ask()
    request = server.requests[0]
    assert request.path == "/model/us.anthropic.claude-sonnet-5-5-v1:0/invoke-with-response-stream"
    assert request.body["anthropic_version"] == "bedrock-2023-05-31"
    assert request.headers["authorization"] == "Bearer canary-bearer"


async def test_requests_for_bedrock_are_signed(server: ModelServer, talk: Open) -> None:
    """With an access key, the signature is valid for the request that arrives and for its signed headers."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    await talk("bedrock", env=ACCOUNT).ask()
    request = server.requests[0]
    found = request.headers["authorization"]
    assert found.startswith("AWS4-HMAC-SHA256 Credential=AKIACANARY/")
    assert "/us-east-2/bedrock/aws4_request" in found
    assert request.headers["x-amz-security-token"] == "canary-session"
    signed = found.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    signer = SigV4Auth(Credentials("AKIACANARY", "canary-secret-key", "canary-session"), "bedrock", "us-east-2")
    headers = {name: request.headers[name] for name in signed}
    arrived = AWSRequest("POST", server.url + request.path, headers, request.raw)
    arrived.context["timestamp"] = request.headers["x-amz-date"]
    wanted = signer.signature(signer.string_to_sign(arrived, signer.canonical_request(arrived)), arrived)
    assert found.endswith(f"Signature={wanted}")


async def test_requests_for_vertex(server: ModelServer, talk: Open) -> None:
    """The path contains project, region and model, and the access token is the bearer token."""
    await talk("vertex").ask()
    request = server.requests[0]
    place = "/projects/p1/locations/europe-west1/publishers/anthropic/models"
    assert request.path == f"{place}/claude-sonnet-5-5@20260101:streamRawPredict"
    assert (request.headers["authorization"], request.body["stream"]) == ("Bearer canary-token", True)


async def test_vertex_with_a_credentials_file(talk: Open, tmp_path: Path) -> None:
    """The error for an unusable credentials file names the variable."""
    file = tmp_path / "account.json"
    file.write_text('{"type": "service_account"}')
    env = {name: value for name, value in GOOGLE.items() if "TOKEN" not in name}
    made = talk("vertex", env=env | {"GOOGLE_APPLICATION_CREDENTIALS": str(file)})
    with pytest.raises(BackendError, match="cannot use the credentials in GOOGLE_APPLICATION_CREDENTIALS"):
        await made.ask()


async def test_requests_for_azure(server: ModelServer, talk: Open) -> None:
    """The path contains the deployment, and a header contains the key or the access token."""
    await talk("azure").ask()
    token = {"AZURE_OPENAI_AD_TOKEN": "canary-ad", "OPENAI_API_VERSION": "2030-01-01"}
    await talk("azure", env=token).ask()
    key, bearer = server.requests
    assert key.path == "/openai/deployments/my%20gpt-6-luna/chat/completions"
    assert (key.headers["api-key"], bearer.headers["authorization"]) == ("canary-azure", "Bearer canary-ad")


@pytest.mark.parametrize("provider", MODELS)
async def test_failures(server: ModelServer, talk: Open, provider: str) -> None:
    """Rate limits and overload are retried.

    A conversation that is too long, a refused key and an unknown model have different errors.
    """
    server.script.extend([fail(429, "rate", "Too many requests"), fail(503), say("done")])
    made = talk(provider)
    assert text_of((await made.ask()).message) == "done"
    assert [type(retry.error) for retry in made.retries] == [RateLimitError, BackendError]
    for answer, kind, why in (
        (fail(400, "ValidationException", "Input is too long for requested model."), ContextOverflowError, "too long"),
        (fail(403, "AccessDenied", "no access canary"), BackendError, "said 403"),
        (fail(404, "NotFound", "no such model"), BackendError, "the right name"),
    ):
        server.script.append(answer)
        with pytest.raises(kind, match=why):
            await talk(provider).ask()


@pytest.mark.parametrize("provider", MODELS)
async def test_errors_within_a_stream(server: ModelServer, talk: Open, provider: str) -> None:
    """A transient error in a stream is retried, and a permanent error is raised."""
    server.script.extend([say("x" * 50, after=3, how="error", kind="throttlingException"), say("done")])
    made = talk(provider)
    assert text_of((await made.ask()).message) == "done"
    assert [type(retry.error) for retry in made.retries] == [RateLimitError]
    server.script.append(say("x" * 50, after=3, how="error", kind="validationException"))
    with pytest.raises(BackendError, match="something happened"):
        await made.ask()
    assert len(made.retries) == 1


@pytest.mark.parametrize("how", ["eof", "drop", "garbage"])
async def test_broken_event_streams_of_aws(server: ModelServer, talk: Open, how: Any) -> None:
    """A stream that ends early, or that is not an AWS event stream, is retried."""
    server.script.extend([say("x" * 50, after=3, how=how), say("done")])
    made = talk("bedrock")
    assert text_of((await made.ask()).message) == "done"
    assert len(made.retries) == 1


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pieces_of_an_aws_event_stream_may_have_any_size(size: int) -> None:
    """Events do not depend on the pieces. A wrong checksum is an error before the message is complete."""
    events = [{"type": "ping"}, {"type": "message_stop", "filler": "x" * 100}]
    chunk = {":event-type": "chunk", ":message-type": "event"}
    frames = [frame(chunk, {"bytes": base64.b64encode(json.dumps(each).encode()).decode()}) for each in events]
    stream = b"".join(frames)
    decoder = MessageDecoder()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    found = [event for piece in pieces for event in decoder.feed(piece)]
    assert found == [(each["type"], json.dumps(each)) for each in events]
    with pytest.raises(Exception, match="Checksum mismatch"):
        list(decoder.feed(b"\xff" + frames[0][1:13]))


@pytest.mark.parametrize(
    ("provider", "env", "why"),
    [
        ("bedrock", {"AWS_REGION": "x"}, "set AWS_BEARER_TOKEN_BEDROCK or AWS_ACCESS_KEY_ID"),
        ("bedrock", {"AWS_ACCESS_KEY_ID": "x"}, "needs AWS_REGION: set it"),
        ("vertex", {"CLOUDSDK_AUTH_ACCESS_TOKEN": "x"}, "needs CLOUD_ML_REGION and ANTHROPIC_VERTEX_PROJECT_ID"),
        ("azure", {"AZURE_OPENAI_API_KEY": "x"}, "needs AZURE_OPENAI_ENDPOINT"),
    ],
)
def test_missing_settings(provider: str, env: dict[str, str], why: str) -> None:
    """A missing variable is an error that names the variable, before a request is sent."""
    with pytest.raises(ConfigError, match=why):
        complete(BackendSpec(provider, "m"), models.load(), env, env)


def test_an_access_key_without_its_secret() -> None:
    """An access key without its secret is an error that names the missing variable."""
    env = {"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIACANARY"}
    with pytest.raises(ConfigError, match="needs AWS_SECRET_ACCESS_KEY beside AWS_ACCESS_KEY_ID"):
        make_backend(complete(BackendSpec("bedrock", CLAUDE), models.load(), env, env), env | {"{AWS_REGION}": "x"})


def test_addresses_and_limits() -> None:
    """The address contains the region.

    A model whose name contains the name of a known model has the limits and levels of the known model.
    """
    known = models.load()
    bedrock = complete(BackendSpec("bedrock", CLAUDE), known, AWS, AWS).options
    assert bedrock["base_url"] == "https://bedrock-runtime.us-east-2.amazonaws.com"
    assert (bedrock["context"], bedrock["price_known"]) == (1_000_000, False)
    assert bedrock["prices"][0]["input"] > 0
    assert "xhigh" in bedrock["flags"]["thinks"]
    assert complete(BackendSpec("vertex", "m"), known, GOOGLE, GOOGLE).options["context"] == 200_000
    luna = known.look_up("azure", "prod-gpt-6-luna")
    assert luna.context == known.look_up("openai", "gpt-6-luna").context
    assert luna.api == "azure"


@pytest.mark.parametrize("provider", MODELS)
async def test_an_agent(server: ModelServer, tmp_path: Path, provider: str) -> None:
    """An agent in a separate process answers with a model of a cloud provider."""
    model, env, address = MODELS[provider]
    server.script.append(say("hello"))
    async with AsyncOrchestrator(home=tmp_path, env=env | {address: server.url}) as o:
        agent = await o.spawn("work", model=f"{provider}:{model}", context="none", tools=[])
        assert (await agent.query("hi")).text == "hello"
        assert not server.refused


async def test_credentials_of_clouds_reach_their_own_agents(server: ModelServer, tmp_path: Path) -> None:
    """Agents get cloud credentials only if their model belongs to the cloud.

    If the configuration names a model of the cloud, all agents get the credentials.
    """
    env = ACCOUNT | {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BEDROCK_BASE_URL": server.url}
    server.script.append(say("hello"))
    async with AsyncOrchestrator(home=tmp_path / "one", env=env, model="anthropic:claude-haiku-4-5") as o:
        other = await o.spawn("work", tools=[], context="none")
        assert "AWS_SECRET_ACCESS_KEY" not in o._keys_for(other.id)
        assert o._keys_for(other.id)["ANTHROPIC_API_KEY"] == "k"
        await other.set_model(f"bedrock:{CLAUDE}")
        assert (await other.query("hi")).text == "hello"
        assert o._keys_for(other.id)["AWS_SECRET_ACCESS_KEY"] == "canary-secret-key"
    config = Config(model="anthropic:claude-haiku-4-5", subagents=SubagentsConfig(chat_models=("bedrock:*",)))
    async with AsyncOrchestrator(home=tmp_path / "two", env=env, config=config) as o:
        agent = await o.spawn("work", tools=[], context="none")
        assert o._keys_for(agent.id)["AWS_ACCESS_KEY_ID"] == "AKIACANARY"


def test_without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without boto3, the error of a Bedrock model names the extra to install."""
    monkeypatch.setattr("orch_worker.backends.clients.bedrock.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'orch-agents\[bedrock\]'"):
        make_backend(complete(BackendSpec("bedrock", CLAUDE), models.load(), AWS, AWS), AWS)
