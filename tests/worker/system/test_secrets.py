"""Text and output without the keys that a process holds."""

from __future__ import annotations

import pytest

from orch_worker.process import worker_init
from orch_worker.system.secrets import Masker, mask_secrets
from orch_worker.system.threads import describe_exception

KEY, LONGER = "sk-planted-1", "sk-planted-1-and-more"


def test_every_occurrence_goes() -> None:
    """The longer of two that begin alike first; what is too short to protect anything stays."""
    text = f"{KEY},{LONGER},{KEY} pw"
    assert mask_secrets(text, (KEY, LONGER, "pw", "")) == "[a key],[a key],[a key] pw"
    assert mask_secrets(text, ()) == text


@pytest.mark.parametrize("size", range(1, 20))
def test_a_key_that_comes_in_pieces_goes_too(size: int) -> None:
    """However the output is cut, what is shown is what the whole would be; what only begins like a key is shown."""
    whole = f"a {KEY}{KEY} sk-plan b {LONGER} sk-planted".encode()
    masker = Masker((KEY, "other-secret"))
    shown = [masker.feed(whole[start : start + size]) for start in range(0, len(whole), size)]
    assert not any(b"planted-1" in piece for piece in shown)
    assert b"".join(shown) + masker.rest() == whole.replace(KEY.encode(), b"[a key]")
    assert masker.rest() == b""


def test_without_keys_nothing_waits() -> None:
    """Output goes through as it comes."""
    assert Masker(()).feed(b"sk-") == b"sk-"


def test_what_a_worker_prints_has_no_key(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log gets the report of an error that quotes one without it."""
    monkeypatch.setattr(worker_init._MaskedText, "secrets", (KEY,))
    stream = worker_init._LossyLog.stream(1)
    print(f"ValueError: illegal header b'{KEY}'", file=stream, flush=True)
    assert capfd.readouterr().out == "ValueError: illegal header b'[a key]'\n"


def test_key_error_for_a_withheld_variable_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names, and other errors, have none."""
    monkeypatch.setenv("ORCH_WITHHELD", "SLACK_WEBHOOK STRIPE_ACCOUNT")
    hint = " (SLACK_WEBHOOK is set in your shell but not passed to workers; add it to environment.pass)"
    assert describe_exception(KeyError("SLACK_WEBHOOK")) == f"KeyError: 'SLACK_WEBHOOK'{hint}"
    assert describe_exception(KeyError("SLACK")) == "KeyError: 'SLACK'"
    assert describe_exception(KeyError(["SLACK_WEBHOOK"])) == "KeyError: ['SLACK_WEBHOOK']"
    assert describe_exception(ValueError("SLACK_WEBHOOK")) == "ValueError: SLACK_WEBHOOK"
    monkeypatch.delenv("ORCH_WITHHELD")
    assert describe_exception(KeyError("SLACK_WEBHOOK")) == "KeyError: 'SLACK_WEBHOOK'"
