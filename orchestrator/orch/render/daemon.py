"""The status of the daemon, as a page for a terminal with 80 columns and 24 lines."""

from __future__ import annotations

from .config import toml_value
from .terminal import age, safe, truncate_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["status_page"]

WIDTH = 79
MAX_SETTINGS = 8
"""The number of settings that the page lists."""


def status_page(status: dict[str, Any], defaults: dict[str, Any], *, details: bool, now: float | None = None) -> str:
    """Return the main facts, and the settings that differ from `defaults`. With `details`, list all settings."""
    minimum = ", required" if status["sandbox_required"] else ""
    facts = {
        "process": f"{status['pid']}, for {age(status['started_at'], now)}",
        "version": f"{status['version']}, protocol {status['protocol']}",
        "home": safe(status["home"]),
        "agents": str(status["agents"]) + (f", {status['busy']} at work" if status["busy"] else ""),
        "model": safe(status["model"] or "the offline one"),
        "sandbox": f"{status['sandbox']}{minimum}; this machine offers {safe(status['sandbox_offered'])}",
    }
    if status.get("agent_id"):
        facts["asked by"] = f"agent {status['agent_id']}"
    settings = status.get("settings", {})
    if not details:
        settings = {key: value for key, value in settings.items() if value != defaults.get(key)}
    shown = settings if details else dict(list(settings.items())[:MAX_SETTINGS])
    lines = [line for name, value in facts.items() for line in _wrapped(name, value)]
    if shown:
        width = max(map(len, shown))
        lines += ["", "all settings:" if details else "settings that differ from the defaults:"]
        lines += [
            f"  {key:{width}}  {truncate_line(toml_value(value), WIDTH - width - 4)}" for key, value in shown.items()
        ]
    if not details:
        more = f"{len(settings) - len(shown)} more, and " if len(settings) > len(shown) else ""
        lines += ["", f"{more}the settings of all agents: orch daemon status --details"]
    return "\n".join(lines)


def _wrapped(name: str, value: str) -> list[str]:
    from textwrap import wrap

    rows = wrap(value, WIDTH - 10, break_long_words=False, break_on_hyphens=False)
    return [f"{head:10}{row}" for head, row in zip([name, *[""] * len(rows)], rows, strict=False)]
