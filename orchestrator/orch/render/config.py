"""Table of settings and their sources."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["table"]


def table(values: dict[str, Any], sources: dict[str, str]) -> str:
    """Return every setting with its value and source, one per line."""
    texts = {key: toml_value(value) for key, value in values.items()}
    widths = max(map(len, texts)), max(map(len, texts.values()))
    return "\n".join(f"{key:{widths[0]}}  {text:{widths[1]}}  {sources[key]}" for key, text in texts.items())


def toml_value(value: Any) -> str:
    """Return `value` in the syntax of a configuration file. None becomes a dash."""
    return "-" if value is None else json.dumps(value, ensure_ascii=False)
