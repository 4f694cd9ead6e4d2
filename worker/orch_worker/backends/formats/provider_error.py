"""Errors that providers report, in a response or within a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from .error_body import read_error_body

__all__ = ["ProviderError", "ReportedError"]

NO_HEADERS: Final[Mapping[str, str]] = {}


class ProviderError(Struct, frozen=True):
    """An error reported by a provider.

    `status` is 200 or 0 if the error was part of a stream. `kinds` are the provider's error types and codes. `fields`
    are numbers beside the message, such as the context window.
    """

    text: str
    status: int = 0
    kinds: tuple[str, ...] = ()
    headers: Mapping[str, str] = {}
    fields: Mapping[str, int] = {}

    @classmethod
    def read(cls, body: Any, status: int = 0, headers: Mapping[str, str] = NO_HEADERS) -> ProviderError:
        """Return the error in the decoded `body` of a response, or in an event of a stream.

        An error within a stream has the status that its code states.
        """
        found = read_error_body(body, status)
        if status < 300:
            codes = (int(kind) for kind in found.kinds if re.fullmatch(r"[45]\d\d", kind))
            status = next(codes, status)
        return cls(found.text, status, found.kinds, headers, found.fields)


class ReportedError(Exception):
    """The provider reported an error instead of a response, or within the stream of a response."""

    def __init__(self, provider_error: ProviderError) -> None:
        super().__init__(provider_error.text)
        self.provider_error = provider_error
