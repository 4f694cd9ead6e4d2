"""The modules that a query runs, in the root and in the worker."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from source_tree import ROOT

FEATURES = re.compile(r"budget|hook|phase|archiv|workspace|memory|skills|taint|local_only|watchers")


@pytest.mark.timeout(180)
def test_query_without_features_runs_no_module_of_a_feature(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A scripted query runs no module of budgets, hooks, phases, archives, workspace, memory, skills, taint labels,
    local-only conversations or watchers.

    The trace contains every Python call of the root and of the worker.
    """
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("bench_calls")
    names = bench.count(Path(sys.executable), tmp_path / "traced")["query"]["names"]
    assert {"orch.services.agents.query", "orch_worker.agent.turn"} <= set(names)
    assert [name for name in names if FEATURES.search(name)] == []
