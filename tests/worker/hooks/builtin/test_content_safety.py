"""The built-in hooks `content_safety` and `loop_detection`."""

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
    """Return a text with the shape and the checksum of a token that gives access to nothing."""
    number, digits = binascii.crc32(body.encode()), ""
    while number:
        number, rest = divmod(number, 62)
        digits = BASE62[rest] + digits
    return f"ghp_{body}{digits.rjust(6, '0')}"


def jwt() -> str:
    """Return a text with the shape of a signed token."""
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
TEST_CARDS = (
    *("4242424242424242", "4111111111111111", "4012888888881881", "4000056655665556", "4222222222222"),
    *("5555555555554444", "5105105105105100", "5200828282828210", "2223003122003222"),
    *("378282246310005", "371449635398431", "378734493671000", "3782 822463 10005"),
    *("6011111111111117", "6011000990139424", "6011981111111113"),
    *("30569309025904", "38520000023237", "36227206271667", "3056930009020004"),
    *("3530111333300000", "3566002020360505", "6200000000000005", "6205500000000000004"),
)


class TestContentSafety:
    """Redaction of secrets and payment data."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_each_kind_of_sensitive_data_is_redacted(self, kind: str) -> None:
        """The name of the kind replaces the data, and the text around the data stays."""
        assert redact_text(f"x={SECRETS[kind]}\nnext") == f"x=[redacted: {kind}]\nnext"
        assert redact_text(SECRETS[kind], ()) == SECRETS[kind]

    @pytest.mark.parametrize("number", TEST_CARDS)
    def test_card_numbers_that_payment_services_publish_for_tests_are_redacted(self, number: str) -> None:
        """Such numbers are also redacted in groups of four digits."""
        assert redact_text(f"card={number}, next") == "card=[redacted: card], next"
        if len(number) % 4 == 0:
            groups = " ".join(number[place : place + 4] for place in range(0, len(number), 4))
            assert redact_text(f"card {groups}.") == "card [redacted: card]."

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("4242 4242 4242 4242 12/27 123", "[redacted: card] 12/27 123"),
            ("4242424242424242 123", "[redacted: card] 123"),
            ("4111-1111-1111-1111 05/28", "[redacted: card] 05/28"),
            ("2001 4242424242424242 ok", "2001 [redacted: card] ok"),
            ("4242 4242 4242 4242 5555 5555 5555 4444", "[redacted: card] [redacted: card]"),
            ("AT61 1904 3002 3457 3201 EUR 100", "[redacted: iban] EUR 100"),
            ("BE68539007547034 2024", "[redacted: iban] 2024"),
            ("AB12 3456 DE89 3704 0044 0532 0130 00", "AB12 3456 [redacted: iban]"),
        ],
    )
    def test_numbers_next_to_payment_data_do_not_prevent_redaction(self, text: str, expected: str) -> None:
        assert redact_text(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "version 1.2.3.4 of 2024-11-21T10:00:00.123456",
            "somebody@example.org, +49 30 1234567, 078-05-1120",
            "4539 1488 0343 6468",  # the check digit is wrong
            "1732183200123456 4111111111111112",
            "4444 4444 4444 4444",
            "DE89 3704 0044 0532 0130 01",
            github_token()[:-1] + "0",
            "eyJhbGciOiJub25l",
            "sk-learn, sk_live_short, AKIA, ghp_abc",
            "d41d8cd98f00b204e9800998ecf8427e e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "-----BEGIN PUBLIC KEY-----\n" + "A" * 64,
            "550e8400-e29b-41d4-a716-446655440000",
        ],
    )
    def test_lookalikes_of_sensitive_data_stay(self, text: str) -> None:
        assert redact_text(text) == text

    def test_only_configured_kinds_are_redacted(self) -> None:
        """A configuration with an unknown kind is refused."""
        options = HookOptions(content_safety=ContentSafety(("card",)))
        text = f"{SECRETS['card']} {SECRETS['aws_key']}"
        patch = call(configured_hooks(["content_safety"], options)[0], returned(text=text))
        assert patch.text == f"[redacted: card] {SECRETS['aws_key']}"
        with pytest.raises(ConfigError, match="unknown kind 'cards'"):
            configured_hooks(["content_safety"], HookOptions(content_safety=ContentSafety(("cards",))))

    def test_redaction_of_a_long_text_is_fast(self) -> None:
        """Redacting 300,000 characters that resemble secrets takes less than two seconds."""
        import time

        cards = ("1234 5678-", "4539148803436467", "4242 4242 4242 4241 ")
        for unit in (*cards, "eyJ", "-----BEGIN PRIVATE KEY-----", "DE89 3704 ", "sk-"):
            began = time.process_time()
            redact_text(unit * (300_000 // len(unit)))
            assert time.process_time() - began < 2.0, unit


class RepeatingAgent:
    """An agent whose calls are checked by loop detection."""

    def __init__(self, **options: int) -> None:
        [self.hook] = configured_hooks(["loop_detection"], HookOptions(loop_detection=LoopDetection(**options)))
        self.ctx = Ctx()

    def runs(self, name: str = "read_file", text: str = "same", files: tuple[str, ...] = (), **input: Any) -> bool:
        """Make a call. Return whether the hook allowed the call."""
        found = call(self.hook, ToolCall(id="1", name=name, input=input), self.ctx)
        event = returned(name, input, text=text, files_changed=files, ran=found is None)
        assert call(self.hook, event, self.ctx) is None
        assert found is None or isinstance(found, Block)
        return found is None


class TestLoopDetection:
    """Detection of repeated calls."""

    def test_repeated_identical_call_is_blocked(self) -> None:
        """A call is blocked after the configured number of identical calls with the same result."""
        agent = RepeatingAgent(repeats=2)
        assert [agent.runs(path="a") for _ in range(5)] == [True, True, False, False, False]
        assert agent.runs(path="b")

    def test_call_with_changing_results_is_never_blocked(self) -> None:
        agent = RepeatingAgent(repeats=2)
        assert all(agent.runs(text=str(number)) for number in range(9))

    def test_intervening_change_resets_loop_detection(self) -> None:
        """Repeating the same change does not reset loop detection a second time."""
        agent = RepeatingAgent(repeats=2)
        test = {"name": "bash", "command": "pytest"}
        assert [agent.runs(**test) for _ in range(3)] == [True, True, False]
        assert agent.runs("write_file", files=("a.py",), path="a.py", content="1")
        assert [agent.runs(**test) for _ in range(3)] == [True, True, False]
        assert agent.runs("write_file", files=("a.py",), path="a.py", content="1")
        assert not agent.runs(**test)

    def test_polling_tools_are_exempt_from_loop_detection(self) -> None:
        """`bg_status` can be called with the same result until the job has ended."""
        agent = RepeatingAgent(repeats=1)
        assert all(agent.runs("bg_status", job="j1") for _ in range(9))

    def test_many_edits_of_one_file_cause_one_reminder(self) -> None:
        """The reminder names the file and the number of edits."""
        agent = RepeatingAgent(edits=3)
        for number in range(6):
            agent.runs("replace_in_file", files=("a.py",), path="a.py", new=str(number))
        assert len(agent.ctx.said) == 1
        assert "a.py 3 times" in agent.ctx.said[0]


def test_each_built_in_hook_is_found_by_name() -> None:
    """Additional hooks of a built-in hook have its name as a prefix."""
    for name in BUILTIN:
        first, *more = configured_hooks([name], HookOptions(model_router=ModelRouter(("a:one", "a:two"))))
        assert first.row.name == name
        assert all(hook.row.name.startswith(f"{name}.") for hook in more)
        assert {hook.row.source for hook in (first, *more)} == {"built-in"}
