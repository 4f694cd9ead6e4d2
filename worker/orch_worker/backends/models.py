"""What is known of models and their providers: addresses, limits, prices, quirks. Data, and looking things up in it.

`models.json` beside this module is made by `scripts/make_models.py`. A `models.json` in `$ORCH_HOME` of the same shape
is laid over it, value by value: another provider, another price, another quirk.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from orch_protocol.agent.models import Price
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.messages import Usage

from ..system.files import bytes_of

__all__ = [
    "Api",
    "Model",
    "ModelCatalog",
    "ModelFlags",
    "ProviderConfig",
    "charged_at",
    "cost",
    "equip",
    "headers_for",
    "is_free",
    "is_priced",
    "load",
    "over",
    "price_at",
]

FILE: Final = "models.json"
MOST_BYTES: Final = 1 << 25
UNKNOWN_CONTEXT: Final = 32_768
CONTENT_SECONDS: Final = 300.0
VARIABLE: Final = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")
# What may follow a listed name without making it another model: a date, `latest`, a version.
SAME_MODEL: Final = re.compile(r"([-@:](\d{4}-?\d{2}-?\d{2}|latest|v\d+(:\d+)?))?")

Api: TypeAlias = Literal["messages", "chat", "responses"]
Tokens: TypeAlias = Annotated[int, Meta(ge=1)]
Limit: TypeAlias = Annotated[int, Meta(ge=0)]
"""In tokens; 0 where it is not known."""
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]


class ModelFlags(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a model or its server does differently from others with the same API."""

    images: bool = True
    system_messages: bool = False
    """Takes messages of role system after the first user message."""
    cache_markers: bool = False
    reasoning: bool = False
    """Returns its reasoning encrypted, when asked to."""
    reasoning_field: str = ""
    """The field of a message that holds the reasoning in plain text."""
    max_tokens_field: str = "max_tokens"
    never_store: bool = False
    prompt_cache_key: bool = False
    json: bool = True
    """Answers with JSON, and nothing else, when it is told to."""
    local: bool = False
    """Runs on this machine: nobody listening there will not be cured by waiting."""
    thinks: tuple[str, ...] = ()
    """The levels of thinking that it takes, of `orch_protocol.agent.models.THINKING`; none: it is told none."""
    thinking_in_tokens: bool = False
    """Takes a number of tokens to think in, rather than a level."""


class ProviderConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach a provider. `keys` and the `*_variable`s name environment variables; the first key found is used.

    A response without content for `first_content_seconds` is given up.

    `headers` are sent along, with "{key}" in them replaced, and those with a "{VARIABLE}" where that is set. `context`
    and `output` (tokens; 0: not known) hold for models that are not listed. `default` is the model used when only a key
    is there.

    A server on this machine lists its models at the path `listing`; of `candidates` the first one that it has is what
    `local` means.
    """

    api: Api
    base_url: str
    base_url_variable: str = ""
    base_path: str = ""
    headers: dict[str, str] = {}
    headers_variable: str = ""
    keys: tuple[str, ...] = ()
    default: str = ""
    listing: str = ""
    candidates: tuple[str, ...] = ()
    context: Tokens = UNKNOWN_CONTEXT
    output: Limit = 0
    first_content_seconds: Seconds = CONTENT_SECONDS
    free: bool = False
    flags: dict[str, Any] = {}
    body: dict[str, Any] = {}

    def address(self, env: Mapping[str, str]) -> str:
        """Return the base URL, which `env` may name."""
        said = env.get(self.base_url_variable, "")
        return _address(said, self.base_path) if said else self.base_url


class ModelEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One listed model, by the beginning of its name; what it leaves out is its provider's."""

    context: Tokens | None = None
    output: Limit | None = None
    api: Api | None = None
    first_content_seconds: Seconds | None = None
    prices: tuple[Price, ...] = ()
    flags: dict[str, Any] = {}
    body: dict[str, Any] = {}


class Model(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything a backend needs to know of the model it talks to: the options of its BackendSpec.

    `prices` are the lowest known ones of the provider while `price_known` is false. `ceiling` is what a million tokens
    are charged whose price is not known, None: nothing says. `body` goes into every request. `first_content_seconds` is
    how long a response may go without content. `base_url_variable` names the variable that sets `base_url`.
    """

    api: Api
    base_url: str
    context: int
    output: int = 0
    first_content_seconds: float = CONTENT_SECONDS
    base_url_variable: str = ""
    keys: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    headers_variable: str = ""
    prices: tuple[Price, ...] = ()
    price_known: bool = True
    ceiling: float | None = None
    flags: ModelFlags = ModelFlags()
    body: dict[str, Any] = {}


def headers_for(model: Model, keys: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the headers that the `model`'s own say, with `key` and the variables among `keys` filled in: those of
    which one is not set are not sent."""
    known = {name.strip("{}"): value.strip() for name, value in keys.items()}  # see `secret.plain`
    ready = {name: said for name, said in model.headers.items() if all(map(known.get, VARIABLE.findall(said)))}
    return {
        name: VARIABLE.sub(lambda found: known[found[1]], said).replace("{key}", key) for name, said in ready.items()
    }


class ModelCatalog(Struct, frozen=True, forbid_unknown_fields=True):
    """Every provider, and the models of each by the beginning of their names."""

    providers: dict[str, ProviderConfig]
    models: dict[str, dict[str, ModelEntry]]
    source: str = ""
    made_by: str = ""

    def look_up(self, provider: str, name: str) -> Model:
        """Return what is known of the model: the entry with the longest name that `name` begins with.

        A price counts only for the entry's own name and its dated versions: another model of the family may cost
        anything. Raises ConfigError for an unknown provider.
        """
        about = self.provider(provider)
        found = self.listed_as(provider, name)
        entry = self.models[provider][found] if found is not None else ModelEntry()
        own = found is not None and bool(entry.prices) and SAME_MODEL.fullmatch(name[len(found) :]) is not None
        return Model(
            api=entry.api or about.api,
            base_url=about.base_url,
            context=entry.context or about.context,
            output=about.output if entry.output is None else entry.output,
            first_content_seconds=entry.first_content_seconds or about.first_content_seconds,
            base_url_variable=about.base_url_variable,
            keys=about.keys,
            headers=about.headers,
            headers_variable=about.headers_variable,
            prices=() if about.free else entry.prices if own else self._floor(provider),
            price_known=own or about.free,
            flags=msgspec.convert(about.flags | entry.flags, ModelFlags),
            body=about.body | entry.body,
        )

    @property
    def secrets(self) -> tuple[str, ...]:
        """The variables that hold keys and secret headers of providers."""
        names = (name for about in self.providers.values() for name in (*about.keys, about.headers_variable))
        return tuple(dict.fromkeys(filter(None, names)))

    @property
    def credentials(self) -> tuple[str, ...]:
        """Every variable that says how providers are reached: keys, headers and addresses."""
        addresses = filter(None, (about.base_url_variable for about in self.providers.values()))
        return tuple(dict.fromkeys((*self.secrets, *self.variables, *addresses)))

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that headers of providers are made of."""
        return tuple(dict.fromkeys(name for provider in self.providers for name in self.headers_of(provider)))

    def headers_of(self, provider: str) -> tuple[str, ...]:
        """Return the variables that headers of the provider are made of."""
        headers = self.providers[provider].headers.values()
        return tuple(dict.fromkeys(name for header in headers for name in VARIABLE.findall(header)))

    def listed_as(self, provider: str, name: str) -> str | None:
        """Return the longest listed name that `name` begins with, if there is one."""
        listed = self.models.get(provider, {})
        return max((known for known in listed if name.startswith(known)), key=len, default=None)

    def provider(self, name: str) -> ProviderConfig:
        """Return the provider called `name`. Raises ConfigError."""
        if name not in self.providers:
            raise ConfigError(f"unknown provider {name!r}: known are {', '.join(self.providers)}")
        return self.providers[name]

    def default(self, keys: Container[str]) -> str | None:
        """Return the `provider:model` to use when none is named: of the first provider that has a key in `keys`."""
        for name, about in self.providers.items():
            if about.default and any(key in keys for key in about.keys):
                return f"{name}:{about.default}"
        return None

    def _floor(self, provider: str) -> tuple[Price, ...]:
        known = [entry.prices[0] for entry in self.models.get(provider, {}).values() if entry.prices]

        def lowest(kind: str) -> float | None:
            return min((price for each in known if (price := getattr(each, kind)) is not None), default=None)

        prices = Price(lowest("input"), lowest("output"), lowest("cache_read"), lowest("cache_write"))
        return (prices,) if known else ()


def load(home: Path | None = None) -> ModelCatalog:
    """Return what is known, with `home`'s own models.json laid over it. Raises ConfigError if that does not fit."""
    own = home / FILE if home is not None else None
    if own is None or not own.exists():
        return _shipped()
    try:
        content = msgspec.json.decode(bytes_of(own, MOST_BYTES), type=dict[str, Any])
        loaded = msgspec.convert(over(_raw(), content), ModelCatalog)
        for provider, listed in loaded.models.items():
            for name in listed:
                loaded.look_up(provider, name)
    except (OSError, msgspec.MsgspecError, ConfigError) as error:
        raise ConfigError(
            f"{own} does not fit: {error}; its shape is that of {Path(__file__).with_name(FILE)}"
        ) from error
    return loaded


def equip(
    spec: BackendSpec,
    models: ModelCatalog,
    env: Mapping[str, str],
    keys: Container[str],
    ceiling: float | None = None,
) -> BackendSpec:
    """Return `spec` with all its worker needs to know: the options are a Model, at the address that `env` says.

    `keys` are the names of the secrets at hand, `ceiling` is charged for what has no known price; see Model. Raises
    ConfigError when no model is named or no key is there.
    """
    about = models.provider(spec.provider)
    name = spec.model or about.default
    if not name:
        raise ConfigError(f"which model of {spec.provider}? Write {spec.provider}:MODEL")
    if about.keys and not any(key in keys for key in about.keys):
        raise ConfigError(f"{spec.provider}:{name} needs a key: set {' or '.join(about.keys)} where orch is started")
    model = msgspec.structs.replace(models.look_up(spec.provider, name), base_url=about.address(env))
    if not is_free(model) and not is_priced(model):
        model = msgspec.structs.replace(model, ceiling=ceiling)
    options = msgspec.json.decode(msgspec.json.encode(model)) | spec.options
    return BackendSpec(spec.provider, name, options, spec.thinking)


def cost(model: Model, usage: Usage) -> Usage:
    """Return `usage` with its price by `model`; where one is missing what is charged for that, or else a floor."""
    price = charged_at(model, usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens)
    parts = (
        (usage.input_tokens, price.input),
        (usage.output_tokens, price.output),
        (usage.cache_read_tokens, price.input if price.cache_read is None else price.cache_read),
        (usage.cache_write_tokens, price.cache_write),
    )
    written = usage.cache_write_tokens * (price.input or 0.0) if price.cache_write is None else 0.0
    known = is_free(model) or (model.price_known and all(each is not None for tokens, each in parts if tokens))
    dollars = (written + sum(tokens * (each or 0.0) for tokens, each in parts)) / 1e6
    if model.ceiling is not None:
        return msgspec.structs.replace(usage, cost_usd=dollars, cost_known=False, ceiling_usd=dollars)
    return msgspec.structs.replace(usage, cost_usd=dollars, cost_known=known)


def is_free(model: Model) -> bool:
    """Whether the model costs nothing."""
    return model.price_known and not model.prices


def is_priced(model: Model) -> bool:
    """Whether all is known of what requests to the model cost, so that nothing has to be assumed."""
    kinds = ("input", "output", *(("cache_read", "cache_write") if model.flags.cache_markers else ()))
    return model.price_known and all(getattr(price, kind) is not None for price in model.prices for kind in kinds)


def charged_at(model: Model, tokens: int) -> Price:
    """Return what requests of that many tokens are charged: their price, or, as far as that is unknown, the ceiling."""
    price, ceiling = price_at(model, tokens), model.ceiling
    if ceiling is None:
        return price
    if not model.price_known:
        return Price(ceiling, ceiling, ceiling, ceiling)
    kinds = ("input", "output", "cache_read", "cache_write")
    missing = {kind: ceiling for kind in kinds if getattr(price, kind) is None}
    return msgspec.structs.replace(price, **missing)


def price_at(model: Model, tokens: int) -> Price:
    """Return what requests of that many tokens cost."""
    return max((each for each in model.prices if tokens > each.above or not each.above), key=_above, default=Price())


def _above(price: Price) -> int:
    return price.above


def _address(text: str, path: str) -> str:
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    return url if url.endswith(path) else url + path


@cache
def _raw() -> dict[str, Any]:
    content: dict[str, Any] = msgspec.json.decode(Path(__file__).with_name(FILE).read_bytes())
    return content


@cache
def _shipped() -> ModelCatalog:
    return msgspec.convert(_raw(), ModelCatalog)


def over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` with `above` laid over it; tables are merged, anything else replaced."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
