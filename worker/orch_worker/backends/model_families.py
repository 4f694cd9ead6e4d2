"""How many characters make a token, by the family of the model: where an estimate begins, before anything is reported.

Of each family, measured: characters a token of Markdown, Python source, minified JSON, logs and Chinese. Those of
Claude fit what recorded sessions with it report, calls and results included.
"""

from __future__ import annotations

from typing import Final

from orch_protocol.agent.spec import BackendSpec

from ..conversation.tokens import PLAIN, CharsPerToken

__all__ = ["CLAUDE", "GPT", "ratios_named", "ratios_of"]

CLAUDE: Final = CharsPerToken(prose=3.0, code=2.9, data=2.2, figures=1.9, wide=1.0, message=4, call=30, result=10)
GPT: Final = CharsPerToken(prose=4.9, code=4.7, data=3.3, figures=2.5, wide=1.4, message=4, call=12, result=4)
"""Also where nothing else is known: the tokenizers of others who came later are much like it."""

FAMILIES: Final = {"claude": CLAUDE, "anthropic": CLAUDE, "openai": GPT, "gpt": GPT}


def ratios_of(spec: BackendSpec) -> CharsPerToken:
    """Return the ratios of the model that the complete `spec` is of; plain ones for a backend that is no model."""
    return ratios_named(f"{spec.provider}:{spec.model}", GPT if "api" in spec.options else PLAIN)


def ratios_named(text: str, otherwise: CharsPerToken = PLAIN) -> CharsPerToken:
    """Return the ratios of the family of models that `text` (a provider, an API, a model) names; else `otherwise`."""
    lowered = text.lower()
    return next((ratios for name, ratios in FAMILIES.items() if name in lowered), otherwise)
