"""What model servers say about their models: the answers of llama.cpp, Ollama, LM Studio, vLLM and similar servers.

`local_servers` sends the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

__all__ = [
    "KOBOLDCPP",
    "LLAMA_CPP",
    "OLLAMA",
    "ModelServer",
    "ServedModel",
    "read_koboldcpp",
    "read_lm_studio",
    "read_models",
    "read_ollama",
    "read_props",
]

CONTEXT_FIELDS: Final = ("max_model_len", "context_length", "context_window")
"""Fields of vLLM, SGLang and TensorRT-LLM, of gateways, and of Groq."""
LLAMA_CPP: Final = "llama.cpp"
KOBOLDCPP: Final = "koboldcpp"
VLLM: Final = "vLLM"
LM_STUDIO: Final = "LM Studio"
OLLAMA: Final = "Ollama"


class ServedModel(Struct, frozen=True):
    """A model of a server.

    - `context`: the context window in tokens with which the model runs. 0 means unknown.
    - `longest`: the longest window that the model supports. 0 means unknown.
    - `images`: whether the model accepts images. None means unknown.
    - `other_names`: further names for the same model.
    - `loaded`: whether the model is in memory. None means unknown.
    """

    name: str
    context: int = 0
    longest: int = 0
    images: bool | None = None
    other_names: tuple[str, ...] = ()
    loaded: bool | None = None


class ModelServer(Struct, frozen=True):
    """A server and its models. `kind` is the program if it runs models itself, and "" if that is unknown."""

    models: tuple[ServedModel, ...]
    kind: str = ""

    def find(self, name: str) -> ServedModel | None:
        """Return the model called `name`. The only model of a llama.cpp server answers to every name."""
        found = next((each for each in self.models if _is_named(name, each)), None)
        if found is None and self.kind == LLAMA_CPP and len(self.models) == 1:
            return self.models[0]
        return found


def _is_named(name: str, model: ServedModel) -> bool:
    """Return whether `name` names the model. A name without a tag is the name with the tag `latest`."""
    names = (model.name, *model.other_names)
    return name in names or f"{name}:latest" in names


def read_models(answer: Any) -> ModelServer | None:
    """Return the models in an answer of `/v1/models`. Return None if the answer is not a list of models."""
    entries = _entries(answer, "data")
    if entries is None:
        return None
    owners = {str(entry.get("owned_by")) for entry in entries}
    kind = ""
    if "llamacpp" in owners:
        kind = LLAMA_CPP
    elif "koboldcpp" in owners:
        kind = KOBOLDCPP
    elif any("max_model_len" in entry or "max_seq_len" in _table(entry, "parameters") for entry in entries):
        kind = VLLM
    return ModelServer(tuple(map(_listed, entries)), kind)


def read_props(server: ModelServer, name: str, answer: Any) -> ModelServer:
    """Return `server`, a llama.cpp server, with the facts in its answer of `/props` about the model `name`.

    A server with several slots divides its context. The answer contains the context of one slot.
    """
    context = _tokens(_table(answer, "default_generation_settings").get("n_ctx"))
    vision = _table(answer, "modalities").get("vision")
    images = vision if isinstance(vision, bool) else None
    return _with_facts(server, name, context, images)


def read_lm_studio(answer: Any) -> ModelServer | None:
    """Return the models in LM Studio's answer of `/api/v0/models`. Return None for an answer of another server."""
    entries = _entries(answer, "data")
    if entries is None or not any("max_context_length" in entry and "state" in entry for entry in entries):
        return None
    models = (
        ServedModel(
            entry["id"],
            _tokens(entry.get("loaded_context_length")),
            _tokens(entry.get("max_context_length")),
            entry.get("type") == "vlm",
            loaded=entry.get("state") == "loaded",
        )
        for entry in entries
        if entry.get("type") != "embeddings"
    )
    return ModelServer(tuple(models), LM_STUDIO)


def read_ollama(listed: ModelServer, answer: Any) -> ModelServer | None:
    """Return the models that Ollama `listed`, with the facts in its answer of `/api/ps` about loaded models.

    Return None for an answer of another server.
    """
    entries = _entries(answer, "models", "name")
    if entries is None:
        return None
    server = ModelServer(tuple(replace(each, loaded=False) for each in listed.models), OLLAMA)
    for entry in entries:
        server = _with_facts(server, entry["name"], _tokens(entry.get("context_length")), None, loaded=True)
    return server


def read_koboldcpp(server: ModelServer, answer: Any) -> ModelServer:
    """Return `server` with the context in KoboldCpp's answer of `/api/extra/true_max_context_length`."""
    context = _tokens(_table({"answer": answer}, "answer").get("value"))
    return replace(server, models=tuple(replace(each, context=context) for each in server.models))


def _with_facts(
    server: ModelServer, name: str, context: int, images: bool | None, *, loaded: bool | None = None
) -> ModelServer:
    found = server.find(name)
    if found is None:
        return server
    changed = replace(
        found,
        context=context or found.context,
        images=found.images if images is None else images,
        loaded=found.loaded if loaded is None else loaded,
    )
    return replace(server, models=tuple(changed if each is found else each for each in server.models))


def _listed(entry: Mapping[str, Any]) -> ServedModel:
    meta, parameters, status = _table(entry, "meta"), _table(entry, "parameters"), _table(entry, "status")
    contexts = (*map(entry.get, CONTEXT_FIELDS), meta.get("n_ctx"), parameters.get("max_seq_len"))
    aliases = entry.get("aliases")
    return ServedModel(
        entry["id"],
        next(filter(None, map(_tokens, contexts)), 0),
        _tokens(meta.get("n_ctx_train")),
        other_names=tuple(filter(_is_text, aliases)) if isinstance(aliases, list) else (),
        loaded=status["value"] == "loaded" if "value" in status else None,
    )


def _entries(answer: Any, field: str, name: str = "id") -> list[dict[str, Any]] | None:
    """Return the entries of a list in `answer` that have a `name`. Return None if there is no such list."""
    found = answer.get(field) if isinstance(answer, dict) else None
    if found is None and isinstance(answer, dict) and field in answer:
        found = []  # Ollama without models sends null.
    if not isinstance(found, list):
        return None
    entries: Iterable[Any] = found
    return [entry for entry in entries if isinstance(entry, dict) and _is_text(entry.get(name))]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _table(answer: Any, field: str) -> dict[str, Any]:
    found = answer.get(field) if isinstance(answer, dict) else None
    return found if isinstance(found, dict) else {}


def _tokens(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
