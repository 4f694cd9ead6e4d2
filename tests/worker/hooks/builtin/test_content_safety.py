"""The hooks that come with orch: what they find, and what they leave alone."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import pytest

from hook_events import Ctx, call, returned
from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.events import ToolCall
from orch_protocol.hooks.options import ContentSafety, HookOptions, LoopDetection, ModelRouter
from orch_protocol.hooks.patches import Block
from orch_worker.hooks.builtin.content_safety import BASE62, KINDS, redact_text
from orch_worker.hooks.loader import BUILTIN, configured_hooks


def github_token(body: str = "a" * 30) -> str:
    """Return what has the shape and the checksum of a token, and opens nothing."""
    number, digits = binascii.crc32(body.encode()), ""
    while number:
        number, rest = divmod(number, 62)
        digits = BASE62[rest] + digits
    return f"ghp_{body}{digits.rjust(6, '0')}"


def jwt() -> str:
    """Return what has the shape of a signed token."""
    parts = (b'{"alg":"HS256","typ":"JWT"}', b'{"sub":"nobody at all"}', b"no signature at all, really")
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


SECRETS = {
    "private_key": f"-----BEGIN RSA PRIVATE KEY-----\n{'A' * 64}\n-----END RSA PRIVATE KEY-----",
    "aws_key": "AKIA" + "Q" * 16,
    "github_token": github_token(),
    "google_key": "AIza" + "b" * 35,
    "model_key": "sk-ant-api03-" + "c" * 90,
    "slack_token": "xoxb-1234567890-" + "d" * 24,
    "stripe_key": "sk_live_" + "e" * 24,
    "jwt": jwt(),
    "card": "4539 1488 0343 6467",
    "iban": "DE89 3704 0044 0532 0130 00",
}


class TestContentSafety:
    """Secrets and payment data."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_each_kind_is_found_in_text(self, kind: str) -> None:
        """Each kind is replaced by its name; what stands around it stays."""
        assert redact_text(f"x={SECRETS[kind]}\nnext") == f"x=[redacted: {kind}]\nnext"
        assert redact_text(SECRETS[kind], ()) == SECRETS[kind]

    @pytest.mark.parametrize(
        "text",
        [
            "version 1.2.3.4 of 2024-11-21T10:00:00.123456",
            "somebody@example.org, +49 30 1234567, 078-05-1120",
            "4539 1488 0343 6468",  # the check digit is wrong
            "1732183200123456 4111111111111112",
            "4444 4444 4444 4448",
            "DE89 3704 0044 0532 0130 01",
            github_token()[:-1] + "0",
            "eyJhbGciOiJub25l",
            "sk-learn, sk_live_short, AKIA, ghp_abc",
            "d41d8cd98f00b204e9800998ecf8427e e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "-----BEGIN PUBLIC KEY-----\n" + "A" * 64,
            "550e8400-e29b-41d4-a716-446655440000",
        ],
    )
    def test_what_only_looks_so_stays(self, text: str) -> None:
        """Numbers, versions, addresses, checksums and wrong check digits are left as they are."""
        assert redact_text(text) == text

    def test_only_the_kinds_that_are_asked_for(self) -> None:
        """A configuration names the kinds; one that does not exist is refused."""
        options = HookOptions(content_safety=ContentSafety(("card",)))
        text = f"{SECRETS['card']} {SECRETS['aws_key']}"
        patch = call(configured_hooks(["content_safety"], options)[0], returned(text=text))
        assert patch.text == f"[redacted: card] {SECRETS['aws_key']}"
        with pytest.raises(ConfigError, match="unknown kind 'cards'"):
            configured_hooks(["content_safety"], HookOptions(content_safety=ContentSafety(("cards",))))

    def test_a_million_characters_are_soon_looked_through(self) -> None:
        """No text makes it slow: numbers, letters, dashes and beginnings of keys are gone through once."""
        import time

        for unit in ("1234 5678-", "eyJ", "-----BEGIN PRIVATE KEY-----", "DE89 3704 ", "sk-", "4539148803436467"):
            began = time.process_time()
            redact_text(unit * (300_000 // len(unit)))
            assert time.process_time() - began < 2.0, unit


class Circling:
    """An agent whose calls go through loop detection."""

    def __init__(self, **options: int) -> None:
        [self.hook] = configured_hooks(["loop_detection"], HookOptions(loop_detection=LoopDetection(**options)))
        self.ctx = Ctx()

    def runs(self, name: str = "read_file", text: str = "same", files: tuple[str, ...] = (), **input: Any) -> bool:
        """Make a call; return whether it was let run."""
        said = call(self.hook, ToolCall(id="1", name=name, input=input), self.ctx)
        event = returned(name, input, text=text, files_changed=files, ran=said is None)
        assert call(self.hook, event, self.ctx) is None
        assert said is None or isinstance(said, Block)
        return said is None


class TestLoopDetection:
    """An agent that goes in circles."""

    def test_the_same_call_with_the_same_result_is_blocked(self) -> None:
        """After as many calls as are configured the next one does not run, however often it is tried."""
        agent = Circling(repeats=2)
        assert [agent.runs(path="a") for _ in range(5)] == [True, True, False, False, False]
        assert agent.runs(path="b")

    def test_another_result_is_no_circle(self) -> None:
        """A call whose result changes may be made on and on."""
        agent = Circling(repeats=2)
        assert all(agent.runs(text=str(number)) for number in range(9))

    def test_a_change_in_between_lets_it_be_tried_again(self) -> None:
        """A new call that may have changed something lets old ones be tried again; the same one again does not."""
        agent = Circling(repeats=2)
        test = {"name": "bash", "command": "pytest"}
        assert [agent.runs(**test) for _ in range(3)] == [True, True, False]
        assert agent.runs("write_file", files=("a.py",), path="a.py", content="1")
        assert [agent.runs(**test) for _ in range(3)] == [True, True, False]
        assert agent.runs("write_file", files=("a.py",), path="a.py", content="1")
        assert not agent.runs(**test)

    def test_tools_that_wait_may_be_called_again(self) -> None:
        """A tool whose purpose is to be called until something is done is left alone."""
        agent = Circling(repeats=1)
        assert all(agent.runs("bg_status", job="j1") for _ in range(9))

    def test_many_edits_of_one_file_are_told_once(self) -> None:
        """The agent is told to look at a file that it changed so many times, once."""
        agent = Circling(edits=3)
        for number in range(6):
            agent.runs("replace_in_file", files=("a.py",), path="a.py", new=str(number))
        assert len(agent.ctx.said) == 1
        assert "a.py 3 times" in agent.ctx.said[0]


def test_each_built_in_hook_can_be_had() -> None:
    """Each name stands for a hook of that name, and for others whose names begin with it."""
    for name in BUILTIN:
        first, *more = configured_hooks([name], HookOptions(model_router=ModelRouter(("a:one", "a:two"))))
        assert first.row.name == name
        assert all(hook.row.name.startswith(f"{name}.") for hook in more)
        assert {hook.row.source for hook in (first, *more)} == {"built-in"}
