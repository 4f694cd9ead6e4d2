"""Create `worker/orch_worker/backends/models.json` from a price list and `providers.toml`.

    pip download --no-deps litellm && python scripts/make_models.py litellm-*.whl

The price list is part of the litellm package (MIT licence). This script reads it from the wheel without installing the
package.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
TARGET: Final = HERE.parent / "worker" / "orch_worker" / "backends" / "models.json"
LIST: Final = "litellm/model_prices_and_context_window_backup.json"
LICENCE: Final = "MIT License, Copyright (c) 2023 Berri AI"
PER_TOKEN: Final = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
}
TIER: Final = re.compile(r"input_cost_per_token_above_(\d+)k_tokens")
REASONING_SECONDS: Final = 1800
"""Time limit in seconds without content, for a model that reasons."""
DATED: Final = re.compile(r"-\d{4}-?\d{2}-?\d{2}")
NOT_FOR_AGENTS: Final = re.compile(r"^ft:|/|audio|search|deep-research|computer-use")


def prices(record: Mapping[str, Any]) -> list[dict[str, float]]:
    """Return the prices in USD per million tokens. The prices for long prompts come last."""
    above = sorted(int(match[1]) for key in record if (match := TIER.fullmatch(key)))
    found = []
    for thousands in (0, *above):
        suffix = f"_above_{thousands}k_tokens" if thousands else ""
        tier = {name: round(record[key + suffix] * 1e6, 6) for name, key in PER_TOKEN.items() if key + suffix in record}
        if tier:
            found.append(({"above": thousands * 1000} if thousands else {}) | tier)
    return found


def thinking(provider: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that state the supported thinking levels of a model, and how to request them.

    Return {} if the price list does not contain this information.
    """
    if named := record.get("reasoning_effort_levels"):
        return {"thinks": named}
    if not record.get("supports_reasoning"):
        return {}
    if provider == "anthropic":
        if not record.get("supports_adaptive_thinking"):
            return {"thinks": ["off", "minimal", "low", "medium", "high"], "thinking_in_tokens": True}
        off = [] if record.get("thinking_always_on") else ["off"]
        return {"thinks": [*off, "low", "medium", "high", *_more(record)]}
    if provider == "openai":
        off = ["off"] if record.get("supports_none_reasoning_effort") else []
        minimal = ["minimal"] if record.get("supports_minimal_reasoning_effort") else []
        low = ["low"] if record.get("supports_low_reasoning_effort", True) else []
        return {"thinks": [*off, *minimal, *low, "medium", "high", *_more(record)]}
    return {}


def _more(record: Mapping[str, Any]) -> list[str]:
    return [level for level in ("xhigh", "max") if record.get(f"supports_{level}_reasoning_effort")]


def entry(provider: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of one model in models.json."""
    made: dict[str, Any] = {"context": record["max_input_tokens"], "output": record["max_output_tokens"]}
    flags: dict[str, Any] = {}
    if provider == "openai":
        if record["mode"] == "responses" or "/v1/responses" in record.get("supported_endpoints", ()):
            made["api"] = "responses"
        if record.get("supports_reasoning"):
            flags["reasoning"] = True
    flags |= thinking(provider, record)
    if record.get("supports_mid_conversation_system"):
        flags["system_messages"] = True
    if not record.get("supports_vision"):
        flags["images"] = False
    if flags.get("reasoning") or flags.get("thinks"):
        made["first_content_seconds"] = REASONING_SECONDS
    made["prices"] = prices(record)
    return made | ({"flags": flags} if flags else {})


def models(listed: Mapping[str, Mapping[str, Any]], provider: str) -> dict[str, Any]:
    """Return the models of `provider` that support tools. A dated name without additional information is left out."""
    found = {}
    for key, record in sorted(listed.items()):
        name = key.removeprefix(f"{provider}/")
        if (
            record.get("litellm_provider") == provider
            and record.get("mode") in ("chat", "responses")
            and record.get("supports_function_calling")
            and "max_input_tokens" in record
            and not NOT_FOR_AGENTS.search(name)
        ):
            found[name] = entry(provider, record)
    return {
        name: made for name, made in found.items() if found.get(DATED.sub("", name)) != made or not DATED.search(name)
    }


def make(listed: Mapping[str, Mapping[str, Any]], own: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the content of models.json. The data in `own` overrides the data of the price list."""
    return {
        "source": f"{source}: {LIST.partition('/')[2]}; {LICENCE}",
        "made_by": "scripts/make_models.py",
        "providers": own["providers"],
        "models": {
            provider: dict(sorted((models(listed, provider) | own["models"].get(provider, {})).items()))
            for provider, about in own["providers"].items()
            if not about.get("free")
        },
    }


def dump(made: Mapping[str, Any]) -> str:
    """Return the JSON text with one model on each line."""
    rows = {
        provider: ",\n".join(f"   {json.dumps(name)}: {json.dumps(model)}" for name, model in found.items())
        for provider, found in made["models"].items()
    }
    head = json.dumps({key: value for key, value in made.items() if key != "models"}, indent=1)
    body = ",\n".join(f"  {json.dumps(provider)}: {{\n{text}\n  }}" for provider, text in rows.items() if text)
    return f'{head[:-2]},\n "models": {{\n{body}\n }}\n}}\n'


def main(path: str) -> None:
    """Write models.json from the file at `path`, which is the wheel or a JSON file."""
    if path.endswith(".whl"):
        with zipfile.ZipFile(path) as wheel:
            listed = json.loads(wheel.read(LIST))
        source = " ".join(Path(path).name.split("-")[:2])
    else:
        listed, source = json.loads(Path(path).read_text()), Path(path).name
    own = tomllib.loads((HERE / "providers.toml").read_text())
    TARGET.write_text(dump(make(listed, own, source)))


if __name__ == "__main__":
    main(*sys.argv[1:])
