"""The number of characters per token for each model family. Token estimates start with these values.

The values were measured on Markdown, Python source, minified JSON, logs and Chinese text. The values for Claude match
the usage reported in recorded sessions, including calls and results.
"""

from __future__ import annotations

from typing import Final

from orch_protocol.agent.spec import BackendSpec

from ..conversation.tokens import PLAIN, CharsPerToken, TokenEstimator

__all__ = ["CLAUDE", "GPT", "estimator_of", "ratios_named", "ratios_of"]

CLAUDE: Final = CharsPerToken(prose=3.0, code=2.9, data=2.2, figures=1.9, wide=1.0, message=4, call=30, result=10)
GPT: Final = CharsPerToken(prose=4.9, code=4.7, data=3.3, figures=2.5, wide=1.4, message=4, call=12, result=4)
"""The ratios of GPT models. Unknown models use these ratios too, because their tokenizers are similar."""

FAMILIES: Final = {"claude": CLAUDE, "anthropic": CLAUDE, "openai": GPT, "gpt": GPT}


def ratios_of(spec: BackendSpec) -> CharsPerToken:
    """Return the ratios for the model in the complete `spec`. Return PLAIN for a backend without a model."""
    return ratios_named(f"{spec.provider}:{spec.model}", GPT if "api" in spec.options else PLAIN)


def estimator_of(spec: BackendSpec, factor: float = 1.0) -> TokenEstimator:
    """Return an estimator for the model of the complete `spec`. `factor` is a correction that was learned earlier."""
    return TokenEstimator(ratios_of(spec), factor)


def ratios_named(text: str, otherwise: CharsPerToken = PLAIN) -> CharsPerToken:
    """Return the ratios of the model family named in `text`. Return `otherwise` if `text` names no known family.

    `text` is a provider, an API or a model.
    """
    lowered = text.lower()
    return next((ratios for name, ratios in FAMILIES.items() if name in lowered), otherwise)
