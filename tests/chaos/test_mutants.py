"""The mutants of `make chaos-long` apply to the current source, and one of them is tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.mutants import MUTANTS, ROOT, Mutant

SECONDS = 50.0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_applies_once_and_names_one_test(mutant: Mutant) -> None:
    """The replaced text occurs once in the file, and the named test exists."""
    assert (ROOT / mutant.file).read_text().count(mutant.original) == 1
    file, *names = mutant.test.split("::")
    source = (ROOT / file).read_text()
    assert not names or f"def {names[-1]}(" in source


def test_mutant_is_detected_by_its_test() -> None:
    """`mutants.py` reports a mutant as detected if the mutant's test fails in a changed copy of the source tree."""
    script = str(Path(__file__).with_name("mutants.py"))
    done = subprocess.run(
        [sys.executable, script, "another incarnation"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 mutants were detected" in done.stdout
