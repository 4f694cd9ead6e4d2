"""The catalog of models and providers: addresses, limits, prices and special behavior.

`scripts/make_models.py` generates the file `models.json` beside this module. Values in `$ORCH_HOME/models.json`, a file
of the same format, override single values of the generated file.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct

from orch_protocol.agent.models import Price
from orch_protocol.agent.spec import BackendSpec
from orch_protocol.core.errors import ConfigError
from orch_protocol.core.text import TextEncodingError, decode_text

from ..system.files import bytes_of
from ..system.secrets import mask_passwords
from .custom_classes import find_class, names_class

__all__ = [
    "UNKNOWN_CONTEXT",
    "Api",
    "ApiName",
    "CatalogFile",
    "Model",
    "ModelCatalog",
    "ModelFlags",
    "ProviderConfig",
    "filled",
    "is_loopback",
    "load",
    "merge_tables",
    "names_address",
    "provider_at",
    "served_name",
    "shipped_model",
    "valid_catalog",
    "with_model_options",
]

PORTABLE_FLAGS: Final = frozenset({"images", "thinks", "thinking_in_tokens"})
"""Flags that also apply to the same model at another provider."""
FILE: Final = "models.json"
MAX_BYTES: Final = 1 << 25
UNKNOWN_CONTEXT: Final = 32_768
CONTENT_SECONDS: Final = 300.0
CLASS_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
VARIABLE: Final = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")
# Suffixes of a listed name that do not change the model: a date, `latest`, or a version.
SAME_MODEL: Final = re.compile(r"([-@:](\d{4}-?\d{2}-?\d{2}|latest|v\d+(:\d+)?))?")

SCHEMES: Final = ("http", "https")

Api: TypeAlias = Literal["messages", "chat", "responses", "bedrock", "vertex", "azure"]
ApiName: TypeAlias = str
"""The name of an API: an Api, the import path of a custom backend (`package.module:Class`), or "@" and the id of an
object.
"""
Tokens: TypeAlias = Annotated[int, Meta(ge=1)]
Limit: TypeAlias = Annotated[int, Meta(ge=0)]
"""A limit in tokens. 0 means unknown."""
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]


class ModelFlags(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Special behavior of a model or its server, compared with other models that use the same API."""

    images: bool = True
    system_messages: bool = False
    """The server accepts messages with the role "system" after the first user message."""
    cache_markers: bool = False
    reasoning: bool = False
    """The model can return its reasoning in encrypted form."""
    reasoning_field: str = ""
    """The name of the message field that contains the reasoning in plain text."""
    max_tokens_field: str = "max_tokens"
    never_store: bool = False
    prompt_cache_key: bool = False
    json: bool = True
    """The model can be instructed to answer with JSON only."""
    local: bool = False
    """The model runs on this machine. If its server is not running, waiting does not help."""
    thinks: tuple[str, ...] = ()
    """The supported levels of `orch_protocol.agent.models.THINKING`. If empty, requests contain no level."""
    thinking_in_tokens: bool = False
    """Thinking is limited by a number of tokens instead of a level."""


class ProviderConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach a provider.

    - `keys` and the `*_variable` fields name environment variables. The first variable of `keys` that is set is used.
    - `first_content_seconds`: a response without content is abandoned after this time.
    - `headers`: "{key}" and "{VARIABLE}" in values are replaced. A header with an unset variable is not sent.
    - `context`, `output`: limits in tokens for models that are not listed. 0 means an unknown limit.
    - `default`: the model to use if only a key is set.
    - `listing`: the path at which a local server lists its models. `candidates`: the name `local` means the first of
      these models that the server has.
    - `base_url`: custom backends need no `base_url`. Variables in `base_url` are replaced.
    - `settings`: further values for the API's client, with variables like those in `headers`.
    - `needs`: variables that must be set.
    - `restricted`: if True, only workers of agents that use this provider receive its variables.
    - `like`: another provider. If the name of a model contains the name of a model of that provider, the model gets the
      limits and some flags of that model.
    """

    api: ApiName
    base_url: str = ""
    base_url_variable: str = ""
    base_path: str = ""
    headers: dict[str, str] = {}
    headers_variable: str = ""
    settings: dict[str, str] = {}
    needs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    restricted: bool = False
    like: str = ""
    default: str = ""
    listing: str = ""
    candidates: tuple[str, ...] = ()
    context: Tokens = UNKNOWN_CONTEXT
    output: Limit = 0
    first_content_seconds: Seconds = CONTENT_SECONDS
    free: bool = False
    flags: dict[str, Any] = {}
    body: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_api(self.api)
        if not (self.base_url or self.base_url_variable or self.is_custom):
            raise ValueError(f"a provider with the API {self.api!r} needs a base_url")

    @property
    def is_custom(self) -> bool:
        """Whether the provider is a custom backend. A custom backend does not need the name of a model."""
        return self.api not in get_args(Api)

    def address(self, env: Mapping[str, str]) -> str:
        """Return the base URL. A variable in `env` may override the configured URL."""
        value = env.get(self.base_url_variable, "")
        if value:
            return _address(value, self.base_path)
        return VARIABLE.sub(lambda found: env.get(found[1]) or found[0], self.base_url)


class ModelEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A catalog entry for all models whose names begin with the entry's name.

    Omitted fields are taken from the provider.
    """

    context: Tokens | None = None
    output: Limit | None = None
    api: ApiName | None = None
    first_content_seconds: Seconds | None = None
    prices: tuple[Price, ...] = ()
    flags: dict[str, Any] = {}
    body: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.api is not None:
            _check_api(self.api)


class Model(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a BackendSpec: all data about the model that a backend needs.

    If `price_known` is False, `prices` are the lowest known prices of the provider. `ceiling` is the price in USD per
    million tokens that is assumed for an unknown price. None means that no price is assumed. `body` is merged into each
    request. `first_content_seconds` is the time limit for the first content. `base_url_variable` names the variable
    that sets `base_url`. `served_name` is the name of the model in requests if it is not the name in the spec. If
    `context_reported` is True, the server reported `context`.
    """

    api: ApiName
    base_url: str
    context: int
    output: int = 0
    first_content_seconds: float = CONTENT_SECONDS
    base_url_variable: str = ""
    keys: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    headers_variable: str = ""
    settings: dict[str, str] = {}
    prices: tuple[Price, ...] = ()
    price_known: bool = True
    ceiling: float | None = None
    flags: ModelFlags = ModelFlags()
    body: dict[str, Any] = {}
    served_name: str = ""
    context_reported: bool = False

    @property
    def is_free(self) -> bool:
        """Whether the model costs nothing."""
        return self.price_known and not self.prices

    @property
    def is_priced(self) -> bool:
        """Whether every price of the model is known, so that no price must be assumed."""
        kinds = ("input", "output", *(("cache_read", "cache_write") if self.flags.cache_markers else ()))
        return self.price_known and all(getattr(price, kind) is not None for price in self.prices for kind in kinds)

    def price_at(self, tokens: int) -> Price:
        """Return the listed price of a request of `tokens` tokens."""
        applicable = (each for each in self.prices if tokens > each.above or not each.above)
        return max(applicable, key=attrgetter("above"), default=Price())

    def charged_at(self, tokens: int) -> Price:
        """Return the price charged for a request of `tokens` tokens. `ceiling` replaces unknown prices."""
        price, ceiling = self.price_at(tokens), self.ceiling
        if ceiling is None:
            return price
        if not self.price_known:
            return Price(ceiling, ceiling, ceiling, ceiling)
        kinds = ("input", "output", "cache_read", "cache_write")
        missing = {kind: ceiling for kind in kinds if getattr(price, kind) is None}
        return msgspec.structs.replace(price, **missing)


def _check_api(name: str) -> None:
    if name not in get_args(Api) and not CLASS_PATH.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a valid api: write {', '.join(get_args(Api))}, "
            "or the package.module:Class of a custom backend"
        )


def _check_flags(owner: str, flags: dict[str, Any]) -> None:
    try:
        msgspec.convert(flags, ModelFlags)
    except msgspec.ValidationError as error:
        known = ", ".join(ModelFlags.__struct_fields__)
        raise ConfigError(f"{owner}.flags: {error} (known flags: {known})") from error


def filled(values: Mapping[str, str], keys: Mapping[str, str], key: str = "") -> dict[str, str]:
    """Return `values` (headers or settings) with `key` and the variables in `keys` filled in.

    Values with an unset variable are left out.
    """
    known = {name.strip("{}"): value.strip() for name, value in keys.items()}  # See `plain_key`.
    ready = {name: template for name, template in values.items() if all(map(known.get, VARIABLE.findall(template)))}
    return {
        name: VARIABLE.sub(lambda found: known[found[1]], template).replace("{key}", key)
        for name, template in ready.items()
    }


class ModelCatalog(Struct, frozen=True, forbid_unknown_fields=True):
    """All providers, and the model entries of each provider. The keys of model entries are prefixes of names."""

    providers: dict[str, ProviderConfig]
    models: dict[str, dict[str, ModelEntry]]
    source: str = ""
    made_by: str = ""

    def look_up(self, provider: str, name: str) -> Model:
        """Return the model `name` of `provider`.

        The model's entry is the entry with the longest name that is a prefix of `name`.

        A price applies only to the entry's own name and its dated versions, because other models of the family may cost
        more. Raise ConfigError for an unknown provider.
        """
        about = self.provider(provider)
        found = self.listed_as(provider, name)
        entry = self.models[provider][found] if found is not None else self._similar_model_entry(about, name)
        has_own_prices = (
            found is not None and bool(entry.prices) and SAME_MODEL.fullmatch(name[len(found) :]) is not None
        )
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
            settings=about.settings,
            prices=()
            if about.free
            else entry.prices
            if has_own_prices or about.like
            else self._lowest_prices(provider),
            price_known=has_own_prices or about.free,
            flags=msgspec.convert(about.flags | entry.flags, ModelFlags),
            body=about.body | entry.body,
        )

    def find_priced(self, name: str, provider: str = "") -> tuple[str, Model] | None:
        """Return the model that a server or a recording calls `name`, with its name as `provider:name`.

        `name` can have the form provider/model. The provider `provider` comes first. Return None if no price is known.
        """
        first, _, rest = name.partition("/")
        places = [(provider, name), *([(first, rest)] if rest else []), *((each, name) for each in self.providers)]
        for each, own_name in places:
            if each in self.providers:
                model = self.look_up(each, own_name)
                if model.price_known and not model.is_free:
                    return f"{each}:{own_name}", model
        return None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of variables that contain keys or secret headers of providers."""
        names = (name for about in self.providers.values() for name in (*about.keys, about.headers_variable))
        return tuple(dict.fromkeys(filter(None, names)))

    @property
    def credentials(self) -> tuple[str, ...]:
        """The names of all variables that contain keys, headers or addresses of providers."""
        addresses = filter(None, (about.base_url_variable for about in self.providers.values()))
        return tuple(dict.fromkeys((*self.secrets, *self.variables, *addresses)))

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of all variables in headers and settings of providers, and of all variables needed by providers."""
        return tuple(dict.fromkeys(name for provider in self.providers for name in self.variables_of(provider)))

    def withheld_from(self, providers: Container[str]) -> frozenset[str]:
        """Return the variables that an agent with models of `providers` does not get.

        The result contains each variable as `NAME` and as `{NAME}`, because `orch.config.models.keys_in` uses both
        forms.
        """
        names = {True: set[str](), False: set[str]()}
        for name, about in self.providers.items():
            every = (*about.keys, about.headers_variable, *self.variables_of(name))
            names[about.restricted and name not in providers].update(every)
        return frozenset(each for name in names[True] - names[False] for each in (name, f"{{{name}}}"))

    def variables_of(self, provider: str) -> tuple[str, ...]:
        """Return the names of the variables that appear in headers and settings of the provider, or that the provider
        needs.
        """
        about = self.providers[provider]
        values = (*about.headers.values(), *about.settings.values())
        names = (name for value in values for name in VARIABLE.findall(value))
        return tuple(dict.fromkeys((*names, *(name for name in about.needs if name != about.base_url_variable))))

    def listed_as(self, provider: str, name: str) -> str | None:
        """Return the longest listed name that is a prefix of `name`, or None."""
        listed = self.models.get(provider, {})
        return max((known for known in listed if name.startswith(known)), key=len, default=None)

    def provider(self, name: str) -> ProviderConfig:
        """Return the provider called `name`. Raise ConfigError for an unknown name."""
        if name not in self.providers:
            raise ConfigError(f"unknown provider {name!r}: known are {', '.join(self.providers)}")
        return self.providers[name]

    def default(self, keys: Container[str]) -> str | None:
        """Return the default model of the first provider with a key in `keys`, as `provider:model`.

        Return None without a key.
        """
        for name, about in self.providers.items():
            if about.default and any(key in keys for key in about.keys):
                return f"{name}:{about.default}"
        return None

    def _similar_model_entry(self, about: ProviderConfig, name: str) -> ModelEntry:
        """Return an entry with the limits and PORTABLE_FLAGS of a listed model of the provider `about.like`.

        The listed model is the model with the longest name that `name` contains. Its prices are a lower bound.
        """
        listed = self.models.get(about.like, {})
        found = [known for known in listed if re.search(rf"(?<![a-z0-9]){re.escape(known)}", name)]
        if not found:
            return ModelEntry()
        entry = listed[max(found, key=len)]
        flags = {flag: value for flag, value in entry.flags.items() if flag in PORTABLE_FLAGS}
        return ModelEntry(
            entry.context, entry.output, None, entry.first_content_seconds, prices=entry.prices[:1], flags=flags
        )

    def _lowest_prices(self, provider: str) -> tuple[Price, ...]:
        known = [entry.prices[0] for entry in self.models.get(provider, {}).values() if entry.prices]

        def lowest(kind: str) -> float | None:
            return min((price for each in known if (price := getattr(each, kind)) is not None), default=None)

        prices = Price(lowest("input"), lowest("output"), lowest("cache_read"), lowest("cache_write"))
        return (prices,) if known else ()


def load(home: Path | None = None) -> ModelCatalog:
    """Return the catalog, merged with the file models.json in `home`. Raise ConfigError if this file is invalid.

    A provider in `models` is a provider in `providers`, or the module or entry point of a custom backend.
    """
    home_file = home / FILE if home is not None else None
    if home_file is None or not home_file.exists():
        return _shipped_catalog()
    try:
        content = msgspec.json.decode(decode_text(bytes_of(home_file, MAX_BYTES)), type=dict[str, Any])
        loaded = msgspec.convert(merge_tables(_shipped_content(), content), ModelCatalog)
        for provider, about in loaded.providers.items():
            _check_flags(f"providers.{provider}", about.flags)
        for provider, listed in loaded.models.items():
            for name, entry in listed.items():
                spec = BackendSpec(provider, name)
                # The package of a class need not be importable in this process.
                if provider not in loaded.providers and not names_class(spec) and find_class(spec) is None:
                    loaded.provider(provider)  # raises the error
                _check_flags(f"models.{provider}.{name}", entry.flags)
    except (OSError, TextEncodingError, msgspec.MsgspecError, ConfigError) as error:
        raise ConfigError(
            f"{home_file} is invalid: {error}; it must have the same format as {Path(__file__).with_name(FILE)}"
        ) from error
    return loaded


class CatalogFile:
    """The catalog with the models.json in `home`. The file is read again when it changed.

    Raise ConfigError if the file is invalid now.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._version = self._read_version()
        self.last = load(home)
        """The catalog of the last valid file."""

    def read(self) -> ModelCatalog:
        """Return the catalog. Raise ConfigError if the file is invalid."""
        if (version := self._read_version()) != self._version:
            self.last = load(self._home)
            self._version = version
        return self.last

    def _read_version(self) -> tuple[int, ...]:
        try:
            found = (self._home / FILE).stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


def valid_catalog(known: ModelCatalog | CatalogFile) -> ModelCatalog:
    """Return the catalog `known`, or that of the file `known`. If the file is invalid, return its last valid state."""
    if isinstance(known, ModelCatalog):
        return known
    try:
        return known.read()
    except ConfigError:
        return known.last


def with_model_options(
    spec: BackendSpec,
    models: ModelCatalog,
    env: Mapping[str, str],
    keys: Container[str],
    ceiling: float | None = None,
) -> BackendSpec:
    """Return `spec` with a Model as options. The address of the Model comes from `env`.

    `keys` are the names of the available secrets. `ceiling` is the assumed price (see Model). A server on this machine
    needs no key. Raise ConfigError if `spec` names no model or a key is missing.
    """
    about = models.provider(spec.provider)
    name = spec.model or about.default
    if not name and not about.is_custom:
        raise ConfigError(f"no model given for provider {spec.provider}; write {spec.provider}:MODEL")
    address = about.address(env)
    on_loopback = is_loopback(str(spec.options.get("base_url", address)))
    has_key = any(key in keys for key in about.keys)
    if about.keys and not has_key and not on_loopback:
        raise ConfigError(f"{spec.provider}:{name} needs a key: set {' or '.join(about.keys)} where orch is started")
    if missing := [variable for variable in about.needs if not env.get(variable)]:
        raise ConfigError(f"{spec.provider}:{name} needs {' and '.join(missing)}: set it where orch is started")
    if not about.is_custom or address:
        _check_address(str(spec.options.get("base_url", address)), _address_setting(spec, about, env))
    model = msgspec.structs.replace(
        models.look_up(spec.provider, name), base_url=address, served_name=served_name(BackendSpec(spec.provider, name))
    )
    if on_loopback and not has_key:
        model = msgspec.structs.replace(model, keys=())
    if not model.is_free and not model.is_priced:
        model = msgspec.structs.replace(model, ceiling=ceiling)
    options = msgspec.json.decode(msgspec.json.encode(model)) | spec.options
    return BackendSpec(spec.provider, name, options, spec.thinking)


def is_loopback(url: str) -> bool:
    """Return whether requests to `url` stay on this machine."""
    from ipaddress import ip_address

    try:
        host = urlsplit(url).hostname or ""
        if host == "localhost":
            return True
        address = ip_address(host)
    except ValueError:
        return False  # A host name may resolve to any address.
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback


def names_address(spec: BackendSpec) -> bool:
    """Return whether the name of the model is the address of its server, such as http://localhost:8080/v1#NAME."""
    return spec.provider in SCHEMES and spec.model.startswith("//")


def provider_at(spec: BackendSpec) -> ProviderConfig | None:
    """Return the provider of a model that is named by an address. Return None for any other model.

    Such a server gets no key, so it is free. Raise ConfigError for an invalid address.
    """
    if not names_address(spec):
        return None
    url = f"{spec.provider}:{spec.model}".partition("#")[0]
    _check_address(url, f"the model {url!r:.200}")
    if "@" in urlsplit(url).netloc:
        raise ConfigError(
            f"the model {mask_passwords(url)!r:.200} contains a password: add the server to $ORCH_HOME/models.json, "
            "with `keys`, and set the key in the environment"
        )
    return ProviderConfig(api="chat", base_url=url.rstrip("/"), free=True)


def served_name(spec: BackendSpec) -> str:
    """Return the name that the server uses for a model that is named by an address, or "" for any other model."""
    return spec.model.partition("#")[2] if names_address(spec) else ""


def shipped_model(provider: str, name: str) -> Model | None:
    """Return the model as the package lists it, without the user's models.json. None if the provider is unknown."""
    shipped = _shipped_catalog()
    return shipped.look_up(provider, name) if provider in shipped.providers else None


def _address_setting(spec: BackendSpec, about: ProviderConfig, env: Mapping[str, str]) -> str:
    """Return the setting that defines the address of the server."""
    if "base_url" in spec.options:
        return f"the option base_url of the model {spec.provider}:{spec.model}"
    if env.get(about.base_url_variable):
        return about.base_url_variable
    return f"base_url of provider {spec.provider!r} in models.json"


def _check_address(url: str, setting: str) -> None:
    """Raise ConfigError, which names `setting`, unless `url` is an address of a server."""
    shown = mask_passwords(url)
    if not url.isprintable() or any(map(str.isspace, url)):
        raise ConfigError(f"{setting} is not an address: {shown!r:.200} contains a blank or a control character")
    try:
        parts = urlsplit(VARIABLE.sub("x", url))
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{setting} is not an address: {shown!r:.200}: {error}") from None
    problem = ""
    if parts.scheme not in ("http", "https"):
        wrong = f"the scheme {parts.scheme!r} is not http or https" if "://" in url else "the scheme is missing"
        problem = f"{wrong}; write http://HOST:PORT or https://HOST"
    elif parts.hostname in (None, "", "http", "https"):  # "http//HOST" has no colon.
        problem = "it names no host; write http://HOST:PORT or https://HOST"
    elif port == 0:
        problem = "the port is 0"
    if problem:
        raise ConfigError(f"{setting} is not an address: {shown!r:.200}: {problem}")


def _address(text: str, path: str) -> str:
    text = text.strip()
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    return url if url.endswith(path) else url + path


@cache
def _shipped_content() -> dict[str, Any]:
    content: dict[str, Any] = msgspec.json.decode(Path(__file__).with_name(FILE).read_bytes())
    return content


@cache
def _shipped_catalog() -> ModelCatalog:
    return msgspec.convert(_shipped_content(), ModelCatalog)


def merge_tables(base: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` merged with `overrides`.

    Tables are merged. Other values of `overrides` replace those of `base`.
    """
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        merged[key] = merge_tables(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
