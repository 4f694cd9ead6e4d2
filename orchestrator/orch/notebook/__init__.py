"""An agent in a notebook. Use `%load_ext orch` in IPython or Jupyter, then `%orch` and `%%orch`."""

from __future__ import annotations

from typing import Any

__all__ = ["load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magics in `shell`, an IPython InteractiveShell. The first prompt starts the agent."""
    from .magic import OrchMagics, rewrite_questions

    shell.register_magics(OrchMagics(shell))
    if rewrite_questions not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(rewrite_questions)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics and end their agents."""
    from .magic import OrchMagics, rewrite_questions

    if rewrite_questions in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(rewrite_questions)
    magics = shell.magics_manager.registry.pop(OrchMagics.__name__, None)
    if magics is not None:
        magics.close()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("orch", None)
