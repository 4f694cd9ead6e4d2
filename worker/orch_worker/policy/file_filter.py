"""What a tool that goes down into folders may show of the files that it comes upon, and what those that it shows bring.

No call can be judged by them before it has looked.
"""

from __future__ import annotations

from collections.abc import Mapping

from orch_protocol.core.taint import BITS, Bit, TaintLabel, taint_label

from .rules import under

__all__ = ["FileFilter"]


class FileFilter:
    """Of one call of `tool`: it is asked about each file, by its absolute path, before anything of that is shown.

    Files under the rules `away` are passed over, and, where that is `bounded`, those that would bring the third of the
    three bits beside what is `there` by then. What is under the rules of `brings` brings that bit.
    """

    def __init__(
        self,
        tool: str,
        away: tuple[str, ...],
        brings: Mapping[Bit, tuple[str, ...]],
        there: frozenset[Bit],
        *,
        bounded: bool,
    ) -> None:
        self._tool, self._bounded = tool, bounded
        self._away = under(away)
        self._brings = {bit: under(rules) for bit, rules in brings.items()}
        self._there = there
        self._marks: dict[Bit, TaintLabel] = {}
        self._passed = 0

    def keeps_away(self, path: str) -> bool:
        """Return whether the file at `path` is passed over, whatever is looked for."""
        if is_away := self._away(path):
            self._passed += 1
        return is_away

    def lets(self, path: str) -> bool:
        """Return whether something of the file at `path`, one that is not kept away, may be shown; if so, that counts
        as done."""
        brings = {bit for bit, says in self._brings.items() if bit not in self._marks and says(path)}
        now = self._there | brings
        if self._bounded and now != self._there and len(now) == len(BITS):
            self._passed += 1
            return False
        self._there = now
        self._marks |= {bit: taint_label(bit, f"{self._tool} {path}") for bit in brings}
        return True

    @property
    def marks(self) -> tuple[TaintLabel, ...]:
        """What the files that were let through bring."""
        return tuple(self._marks.values())

    @property
    def note(self) -> str:
        """What whoever called is told of those that were not, "" when there are none."""
        return f"\n[{self._passed:,} files passed over: the policy keeps them away]" if self._passed else ""
