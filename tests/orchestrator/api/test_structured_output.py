"""What a reply is read as."""

from __future__ import annotations

from typing import Any

import pytest

from orch.api.structured_output import parse_value
from orch_protocol.core.errors import BadReplyError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2]", [1, 2]),
        ("```json\n[1, 2]\n```", [1, 2]),
        ("Here they are: [1, 2]. Anything else?", [1, 2]),
        ('{"failed": "nothing there", "tried": [1]}', None),
        ('So: {"tried": [1]}.', None),
        ('```\n{"tried": [1]}\n```', None),
        ('In {braces}: {"a": 1}', None),
        ('Of [some] there is {"a": 1}', {"a": 1}),
        ('First ```\n{"a": 1}\n``` then ```\n{"a": 2}\n```', {"a": 2}),
        ("", None),
        ("[" * 5000, None),
        ("\ud800", None),
    ],
)
def test_a_value_is_found_whatever_stands_around_it(text: str, value: Any) -> None:
    """Bare, in the last fence, or between the first bracket and the last; else it is none."""
    kind: Any = dict[str, int] if isinstance(value, dict) else list[int]
    if value is not None:
        assert parse_value(text, kind) == value
    else:
        with pytest.raises(BadReplyError):
            parse_value(text, kind)
