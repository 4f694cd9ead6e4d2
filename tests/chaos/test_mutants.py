"""The mutants that `make chaos-long` tries can all be made, and one of them is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.mutants import MUTANTS, ROOT, Mutant

SECONDS = 50.0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_place_is_there(mutant: Mutant) -> None:
    """What it changes stands in the file once, and the test that is to find it out is one."""
    assert (ROOT / mutant.file).read_text().count(mutant.was) == 1
    file, *names = mutant.test.split("::")
    source = (ROOT / file).read_text()
    assert not names or f"def {names[-1]}(" in source


def test_a_mutant_is_found_out() -> None:
    """In a copy of the tree: the tree itself stays as it is."""
    script = str(Path(__file__).with_name("mutants.py"))
    done = subprocess.run(
        [sys.executable, script, "another incarnation"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 mutants were found out" in done.stdout
