"""Types of replies. A type has the JSON schema that the model gets, and converts the model's JSON into a value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from orch_protocol.core.errors import ConfigError

if TYPE_CHECKING:
    from referencing import Resource

__all__ = ["JsonSchema", "MismatchError", "ReturnType", "return_type"]

T = TypeVar("T")
JsonSchema: TypeAlias = Mapping[str, Any]


class MismatchError(ValueError):
    """A JSON value does not have the requested type."""


class ReturnType(Struct, Generic[T], frozen=True):
    """A type of replies. `decode` converts JSON data into a value, or raises MismatchError or msgspec.DecodeError."""

    schema: dict[str, Any]
    decode: Callable[[bytes], T]


def return_type(returns: Any) -> ReturnType[Any]:
    """Return the type described by `returns`.

    `returns` is a JSON schema, a pydantic model, or a type that msgspec supports. Types that msgspec supports are
    structs, dataclasses, TypedDicts and types of JSON values. Raises ConfigError.
    """
    if isinstance(returns, Mapping):
        return _type_of_schema(dict(returns))
    if isinstance(returns, type) and hasattr(returns, "model_json_schema") and hasattr(returns, "model_validate_json"):
        return _type_of_pydantic(returns.model_json_schema, returns.model_validate_json)
    try:
        schema = msgspec.json.schema(returns)
    except (TypeError, RuntimeError, NameError) as error:
        if (found := _type_with_pydantic(returns)) is not None:
            return found
        raise ConfigError(
            "returns must be a JSON schema, or a type that JSON can be, such as a dataclass, TypedDict, msgspec.Struct "
            f"or pydantic model: {error}"
        ) from error

    def decode(data: bytes) -> Any:
        try:
            return msgspec.json.decode(data, type=returns)
        except msgspec.ValidationError as error:
            raise MismatchError(str(error)) from error

    return ReturnType(schema, decode)


def _type_of_schema(schema: dict[str, Any]) -> ReturnType[Any]:
    """Return the type of values that match the JSON schema. References to other documents are not followed."""
    import jsonschema  # imported here because the import is slow
    import referencing.exceptions
    from referencing.jsonschema import DRAFT202012

    registry: referencing.Registry[Any] = referencing.Registry()
    try:
        msgspec.json.encode(schema)
        validator_class = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator_class.check_schema(schema)
    except (jsonschema.SchemaError, TypeError, ValueError, OverflowError, RecursionError, AttributeError) as error:
        message = getattr(error, "message", str(error))
        raise ConfigError(f"returns is not a valid JSON schema: {message}") from error
    try:
        resource = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
        _check_references(resource, registry.resolver_with_root(resource))
    except (referencing.exceptions.Unresolvable, ValueError) as error:
        raise ConfigError(f"returns refers to a schema that it does not contain: {error}") from error
    validator = validator_class(schema, registry=registry)

    def decode(data: bytes) -> Any:
        value = msgspec.json.decode(data)
        try:
            problem = jsonschema.exceptions.best_match(validator.iter_errors(value))
        except referencing.exceptions.Unresolvable as error:
            raise ConfigError(f"returns refers to a schema that it does not contain: {error}") from error
        if problem is not None:
            raise MismatchError(f"{problem.message} - at `{problem.json_path}`")
        return value

    return ReturnType(schema, decode)


def _check_references(resource: Resource[Any], resolver: Any) -> None:
    """Raise Unresolvable or ValueError for a reference that cannot be followed.

    This check runs before the first model request.
    """
    contents = resource.contents
    for keyword in ("$ref", "$dynamicRef") if isinstance(contents, Mapping) else ():
        if keyword in contents:
            resolver.lookup(contents[keyword])
    for each in resource.subresources():
        _check_references(each, resolver.in_subresource(each))


def _type_with_pydantic(returns: Any) -> ReturnType[Any] | None:
    """Return the type if it contains pydantic models, as in `list[Model]`. Otherwise return None.

    Such a type exists only if the program has imported pydantic.
    """
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return None
    try:
        adapter = pydantic.TypeAdapter(returns)
        return _type_of_pydantic(adapter.json_schema, adapter.validate_json)
    except Exception:
        return None


def _type_of_pydantic(make_schema: Callable[[], dict[str, Any]], validate: Callable[[bytes], Any]) -> ReturnType[Any]:
    try:
        schema = make_schema()
    except Exception as error:  # pydantic raises several classes of errors, and runs code of the model
        raise ConfigError(f"pydantic has no JSON schema for `returns`: {error}") from error

    def decode(data: bytes) -> Any:
        msgspec.json.decode(data)  # raises an error of its own for text that is not JSON
        try:
            return validate(data)
        except ValueError as error:  # the base class of pydantic's ValidationError
            raise MismatchError(str(error)) from error

    return ReturnType(schema, decode)
