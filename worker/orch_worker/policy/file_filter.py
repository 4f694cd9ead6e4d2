"""Decides which files a recursive tool may show, and which taint labels the shown files add.

The policy cannot judge these files before the call, because the tool finds the files while the tool runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from orch_protocol.core.taint import BITS, Bit, TaintLabel, taint_label

from .rules import path_matcher

__all__ = ["FileFilter"]


class FileFilter:
    """The filter for one call of `tool`.

    The tool asks the filter about each file before the tool shows anything of this file.

    Absolute paths identify files. Files that match the rules `skip_rules` are skipped. If `enforce_taint` is True, a
    file is also skipped if its taint bit would complete the three bits. `bits` contains the bits before the call.
    `taint_rules` maps each bit to rules. A file that matches one of these rules adds the bit.
    """

    def __init__(
        self,
        tool: str,
        skip_rules: tuple[str, ...],
        taint_rules: Mapping[Bit, tuple[str, ...]],
        bits: frozenset[Bit],
        *,
        enforce_taint: bool,
    ) -> None:
        self._tool, self._enforce_taint = tool, enforce_taint
        self._is_skipped = path_matcher(skip_rules)
        self._taint_matchers = {bit: path_matcher(rules) for bit, rules in taint_rules.items()}
        self._bits = bits
        self._taint_labels: dict[Bit, TaintLabel] = {}
        self._skipped_count = 0

    def skips(self, path: str) -> bool:
        """Return whether the file at `path` matches `skip_rules`. If it matches, count it as skipped."""
        if is_skipped := self._is_skipped(path):
            self._skipped_count += 1
        return is_skipped

    def may_show(self, path: str) -> bool:
        """Return whether the tool may show content of the file at `path`. If so, the bits of the file are added.

        Call `skips` first. Do not call this method if `skips` returned True.
        """
        added = {
            bit for bit, matches in self._taint_matchers.items() if bit not in self._taint_labels and matches(path)
        }
        bits = self._bits | added
        if self._enforce_taint and bits != self._bits and len(bits) == len(BITS):
            self._skipped_count += 1
            return False
        self._bits = bits
        self._taint_labels |= {bit: taint_label(bit, f"{self._tool} {path}") for bit in added}
        return True

    @property
    def taint_labels(self) -> tuple[TaintLabel, ...]:
        """The taint labels of the files that were shown."""
        return tuple(self._taint_labels.values())

    @property
    def note(self) -> str:
        """The note for the model about skipped files, or "" if no files were skipped."""
        return f"\n[{self._skipped_count:,} files were skipped because of the policy]" if self._skipped_count else ""
