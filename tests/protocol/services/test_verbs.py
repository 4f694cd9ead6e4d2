"""The CLI verbs and slash commands of service definitions."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from orch_protocol.services.dispatch.registry import SERVICES
from orch_protocol.services.verbs import VERBS, Verb, nested

CASES = [(service, verb) for service, verbs in VERBS.items() for verb in verbs]


def _has(types: list[Any], path: str) -> bool:
    """Return whether one of the structs `types` has the field `path`; "type" is the tag of a struct."""
    structs = [kind for each in types for kind in get_args(each) or (each,) if hasattr(kind, "__struct_config__")]
    if path == "type":
        return any(kind.__struct_config__.tag is not None for kind in structs)
    name, _, rest = path.partition(".")
    found = [field.type for kind in structs for field in msgspec.structs.fields(kind) if field.name == name]
    return bool(found) and (not rest or _has(found, rest))


@pytest.mark.parametrize(("service", "verb"), CASES, ids=lambda case: case.words if isinstance(case, Verb) else case)
def test_verbs_name_fields_of_their_service(service: str, verb: Verb) -> None:
    """Arguments and fixed values are fields of the parameters, and printed fields are fields of the result."""
    definition = SERVICES[service]
    assert verb in definition.verbs
    given = [each.field for each in verb.arguments] + [*verb.fixed, *verb.any_of]
    assert [field for field in given if not _has([definition.params], field)] == []
    result = (get_args(definition.result) or (definition.result,))[0]
    assert set(verb.prints) <= set(result.__struct_fields__)


def test_words_and_slash_names_are_unique() -> None:
    """No two verbs have the same words, and no two commands have the same slash name."""
    words = [verb.words for _, verb in CASES]
    names = [verb.slash.name for _, verb in CASES if verb.slash is not None]
    assert len(set(words)) == len(words)
    assert len(set(names)) == len(names)


def test_fields_with_dots_are_nested() -> None:
    """A dot in the name of a field separates a struct from its field."""
    assert nested({"ref": "1", "change.type": "label", "change.label": "x"}) == {
        "ref": "1",
        "change": {"type": "label", "label": "x"},
    }
