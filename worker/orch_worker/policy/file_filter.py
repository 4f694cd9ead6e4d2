"""Decides which files a recursive tool may show, and which taint labels the shown files add.

The policy cannot judge these files before the call, because the tool finds the files while the tool runs.
"""

from __future__ import annotations

from orch_protocol.core.taint import BITS, Bit, TaintLabel, taint_label
from orch_protocol.policy.policy import FilterRules

from .rules import path_matcher

__all__ = ["FileFilter"]


class FileFilter:
    """The filter for one call.

    The tool asks the filter about each file before the tool shows anything of this file.
    """

    def __init__(self, rules: FilterRules) -> None:
        self._tool, self._enforce_taint = rules.tool, rules.enforce_taint
        self._is_skipped = path_matcher(rules.skip_rules)
        self._taint_matchers = {bit: path_matcher(paths) for bit, paths in rules.taint_rules.items()}
        self._bits = rules.bits
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
