"""Redacts secrets and payment data in tool results and replies before they are shown or stored.

The patterns prefer precision. A kind with a checksum matches only if the checksum is correct. Text without a
distinctive format, such as an e-mail address, is never redacted.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.events import Output, ToolReturn
from orch_protocol.hooks.options import HookOptions
from orch_protocol.hooks.patches import Patch

from ..hook import Hook, make_hook

__all__ = ["KINDS", "make", "redact_text"]

NAME: Final = "content_safety"
BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
CARD_NUMBER: Final = re.compile(
    r"(?=4)\d{13}(?:\d{3}){0,2}"  # Visa
    r"|(?=5[1-5]|2[2-7])\d{16}"  # Mastercard
    r"|(?=3[47])\d{15}"  # American Express
    r"|(?=6011|64[4-9]|65)\d{16}"  # Discover
    r"|(?=30[0-5]|36|38|39)\d{14}(?:\d\d)?"  # Diners Club
    r"|(?=35(?:2[89]|[3-8]))\d{16}"  # JCB
    r"|(?=62)\d{16}(?:\d{3})?"  # UnionPay
)
"""The lengths of card numbers by the first digits, which identify the issuer."""


class SecretPattern(Struct, frozen=True):
    """The format of a kind of secret, and a function that rejects false matches."""

    regex: re.Pattern[str]
    check: Callable[[str], bool] = bool


def _has_valid_crc(token: str) -> bool:
    """Return whether the last six characters are the base-62 CRC-32 of the other characters after the prefix."""
    body, checksum = token.partition("_")[2][:-6], token[-6:]
    number, digits = binascii.crc32(body.encode()), ""
    while number:
        number, remainder = divmod(number, 62)
        digits = BASE62[remainder] + digits
    return digits.rjust(6, "0") == checksum


def _is_card_number(text: str) -> bool:
    """Return whether the digits of `text` are a card number with a valid length and check digit."""
    digits = re.sub(r"\D", "", text)
    if not CARD_NUMBER.fullmatch(digits):
        return False
    total = 0
    for position, digit in enumerate(map(int, reversed(digits))):
        doubled = 2 * digit if position % 2 else digit
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


def _is_iban(text: str) -> bool:
    """Return whether `text` is an IBAN with valid check digits."""
    compact = text.replace(" ", "")
    return 15 <= len(compact) <= 34 and int("".join(str(int(each, 36)) for each in compact[4:] + compact[:4])) % 97 == 1


def _is_jwt(text: str) -> bool:
    """Return whether the first part of `text` is the header of a signed token."""
    header = text.partition(".")[0]
    try:
        return "alg" in json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    except (ValueError, TypeError):
        return False


KINDS: Final[dict[str, SecretPattern]] = {
    "private_key": SecretPattern(
        re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[\s\S]{40,}?(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z)")
    ),
    "aws_key": SecretPattern(re.compile(r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b")),
    "github_token": SecretPattern(re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36}\b"), _has_valid_crc),
    "google_key": SecretPattern(re.compile(r"\bAIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])")),
    "model_key": SecretPattern(re.compile(r"\bsk-(?:ant-[a-z0-9]+-[\w-]{80,}|proj-[\w-]{40,}|[A-Za-z0-9]{48}\b)")),
    "slack_token": SecretPattern(re.compile(r"\bxox[abprs]-\d{8,}-[0-9A-Za-z-]{10,}")),
    "stripe_key": SecretPattern(re.compile(r"\b[rs]k_live_[0-9A-Za-z]{24,}\b")),
    "jwt": SecretPattern(re.compile(r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,}"), _is_jwt),
    "card": SecretPattern(re.compile(r"(?<![\w.-])\d{4}(?:[ -]?\d{2,6}){2,4}(?![\w-]|\.\d)"), _is_card_number),
    "iban": SecretPattern(re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), _is_iban),
}
"""The kinds of secrets that are redacted. Keys are names of kinds."""


def redact_text(text: str, kinds: tuple[str, ...] = tuple(KINDS)) -> str:
    """Return `text` with each secret of one of `kinds` replaced by "[redacted: KIND]"."""
    for kind in kinds:
        text = _redact_kind(text, kind)
    return text


def make(options: HookOptions) -> tuple[Hook, ...]:
    """Return the hook, configured by `options`. Raise ConfigError for an unknown kind."""
    kinds = options.content_safety.kinds if options.content_safety.kinds is not None else tuple(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"hooks.content_safety.kinds: unknown kind {kind!r}; available: {', '.join(KINDS)}")

    def redact(event: ToolReturn | Output, ctx: Any) -> Patch | None:  # noqa: ARG001
        text = redact_text(event.text, kinds)
        return event.patch(text=text) if text != event.text else None

    stages = ("tool_result", "before_output")
    return (make_hook(redact, *stages, name=NAME, kind="transform", priority=10, does=["text"], on_error="closed"),)


def _redact_kind(text: str, kind: str) -> str:
    """Return `text` with each secret of one kind replaced.

    A match may also contain words after or before the secret, such as the date after a card number. Therefore, shorter
    matches that end at a space are checked as well, and after a false match the search continues at its second word.
    """
    pattern, pieces, position = KINDS[kind], [], 0
    while found := pattern.regex.search(text, position):
        words = found[0].split(" ")
        candidates = (" ".join(words[:count]) for count in range(len(words), 0, -1))
        secret = next(filter(pattern.check, candidates), "")
        pieces += [text[position : found.start()], f"[redacted: {kind}]" if secret else words[0]]
        position = found.start() + len(secret or words[0])
    return "".join(pieces) + text[position:]
