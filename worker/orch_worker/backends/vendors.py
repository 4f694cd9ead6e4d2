"""Whose variables an environment may hold. Data alone: the root reads this before any process is started."""

from __future__ import annotations

from typing import Final

__all__ = ["VENDORS"]

VENDORS: Final = (
    "ANTHROPIC_",
    "AWS_",
    "AZURE_",
    "COHERE_",
    "DEEPSEEK_",
    "GEMINI_",
    "GROQ_",
    "HF_",
    "MISTRAL_",
    "MOONSHOT_",
    "OPENAI_",
    "OPENROUTER_",
    "VERTEX_",
    "XAI_",
)
"""Beginnings of the names of variables that hold a model vendor's secrets, addresses and headers."""
