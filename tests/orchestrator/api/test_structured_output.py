"""JSON values in the texts of replies."""

from __future__ import annotations

from typing import Any

import pytest

from orch.api.return_types import return_type
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
def test_json_value_is_found_in_surrounding_text(text: str, value: Any) -> None:
    """The value is the whole text, in the last fence, or between the first and the last bracket."""
    kind: Any = dict[str, int] if isinstance(value, dict) else list[int]
    if value is not None:
        assert parse_value(text, return_type(kind)) == value
    else:
        with pytest.raises(BadReplyError):
            parse_value(text, return_type(kind))
