"""Text and output without the secrets of a process."""

from __future__ import annotations

import pytest

from orch_worker.process import worker_init
from orch_worker.system.secrets import Masker, mask_secrets
from orch_worker.system.threads import describe_exception

KEY, LONGER = "sk-planted-1", "sk-planted-1-and-more"


def test_every_secret_is_redacted() -> None:
    """The longest matching secret is replaced first, and very short values are not replaced."""
    text = f"{KEY},{LONGER},{KEY} pw"
    assert mask_secrets(text, (KEY, LONGER, "pw", "")) == "[a key],[a key],[a key] pw"
    assert mask_secrets(text, ()) == text


@pytest.mark.parametrize("size", range(1, 20))
def test_secret_split_across_chunks_is_redacted(size: int) -> None:
    """A secret is replaced for each size of chunks, and an incomplete secret is shown."""
    whole = f"a {KEY}{KEY} sk-plan b {LONGER} sk-planted".encode()
    masker = Masker((KEY, "other-secret"))
    shown = [masker.feed(whole[start : start + size]) for start in range(0, len(whole), size)]
    assert not any(b"planted-1" in piece for piece in shown)
    assert b"".join(shown) + masker.rest() == whole.replace(KEY.encode(), b"[a key]")
    assert masker.rest() == b""


def test_output_without_secrets_is_not_delayed() -> None:
    """A masker without secrets returns each chunk at once."""
    assert Masker(()).feed(b"sk-") == b"sk-"


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
