"""What installed packages offer by entry points: folders, of which nothing is imported to find them."""

from __future__ import annotations

from pathlib import Path

from orch_protocol.errors import ConfigError

__all__ = ["offered"]


def offered(group: str, name: str, setting: str) -> Path:
    """Return the folder of the package that is offered as `name` in the entry points `group`.

    Raises ConfigError, which names the `setting` that asks for it.
    """
    # Both take milliseconds to import, and most users name no package.
    import importlib.metadata
    import importlib.util

    there = {each.name: each.value for each in importlib.metadata.entry_points(group=group)}
    if name not in there:
        known = ", ".join(sorted(there)) or "none"
        raise ConfigError(f"{setting}: no installed package offers {name!r} as {group}; there are: {known}")
    try:
        spec = importlib.util.find_spec(there[name])
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{setting}: {name!r}: {there[name]} cannot be found: {error}") from error
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise ConfigError(f"{setting}: {name!r}: {there[name]} is no package with {group.rpartition('.')[2]} in it")
    return Path(places[0])
