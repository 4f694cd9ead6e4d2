"""What a tool that goes down into folders may show of the files that it comes upon, and what those that it shows bring.

No call can be judged by them before it has looked.
"""

from __future__ import annotations

from collections.abc import Mapping

from orch_protocol.taint import BITS, Bit, Mark, mark

from .policy import within

__all__ = ["Sieve"]


class Sieve:
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
        self._tool, self._away, self._brings, self._bounded = tool, away, brings, bounded
        self._there = there
        self._marks: dict[Bit, Mark] = {}
        self._passed = 0

    def lets(self, path: str) -> bool:
        """Return whether something of the file at `path` may be shown; if so, that counts as done."""
        brings = {
            bit
            for bit, rules in self._brings.items()
            if bit not in self._marks and any(within(path, rule) for rule in rules)
        }
        now = self._there | brings
        third = self._bounded and now != self._there and len(now) == len(BITS)
        if third or any(within(path, rule) for rule in self._away):
            self._passed += 1
            return False
        self._there = now
        self._marks |= {bit: mark(bit, f"{self._tool} {path}") for bit in brings}
        return True

    @property
    def marks(self) -> tuple[Mark, ...]:
        """What the files that were let through bring."""
        return tuple(self._marks.values())

    @property
    def note(self) -> str:
        """What whoever called is told of those that were not, "" when there are none."""
        return f"\n[{self._passed:,} files passed over: the policy keeps them away]" if self._passed else ""
