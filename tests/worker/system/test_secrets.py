"""Text and output without the secrets of a process."""

from __future__ import annotations

import pytest

from orch_worker.process import worker_init
from orch_worker.system.secrets import mask_secrets
from orch_worker.system.threads import describe_exception

KEY, LONGER = "sk-planted-1", "sk-planted-1-and-more"


def test_every_secret_is_redacted() -> None:
    """The longest matching secret is replaced first, and very short values are not replaced."""
    text = f"{KEY},{LONGER},{KEY} pw"
    assert mask_secrets(text, (KEY, LONGER, "pw", "")) == "[a key],[a key],[a key] pw"
    assert mask_secrets(text, ()) == text


def test_worker_log_has_no_secrets(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret in an error message is replaced before the message is written to the log."""
    monkeypatch.setattr(worker_init._MaskedText, "secrets", (KEY,))
    stream = worker_init._LossyLog.stream(1)
    print(f"ValueError: illegal header b'{KEY}'", file=stream, flush=True)
    assert capfd.readouterr().out == "ValueError: illegal header b'[a key]'\n"


def test_key_error_for_a_withheld_variable_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyError for another name and other exceptions have no hint."""
    monkeypatch.setenv("ORCH_WITHHELD", "SLACK_WEBHOOK STRIPE_ACCOUNT")
    hint = " (SLACK_WEBHOOK is set in your shell but not passed to workers; add it to environment.pass)"
    assert describe_exception(KeyError("SLACK_WEBHOOK")) == f"KeyError: 'SLACK_WEBHOOK'{hint}"
    assert describe_exception(KeyError("SLACK")) == "KeyError: 'SLACK'"
    assert describe_exception(KeyError(["SLACK_WEBHOOK"])) == "KeyError: ['SLACK_WEBHOOK']"
    assert describe_exception(ValueError("SLACK_WEBHOOK")) == "ValueError: SLACK_WEBHOOK"
    monkeypatch.delenv("ORCH_WITHHELD")
    assert describe_exception(KeyError("SLACK_WEBHOOK")) == "KeyError: 'SLACK_WEBHOOK'"
