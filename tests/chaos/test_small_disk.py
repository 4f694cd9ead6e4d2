"""Full disks: a mounted tmpfs with too few bytes or too few inodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 50.0
ALONE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


def forbidden() -> str:
    """Return the reason why a tmpfs cannot be mounted here, or an empty string."""
    try:
        probe = [*ALONE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=SECONDS, check=False)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


@pytest.mark.parametrize("options", ["size=48k", "nr_inodes=12"], ids=["bytes", "names"])
def test_full_small_disk_loses_no_answer(options: str, tmp_path: Path) -> None:
    """The scenario stops when the disk is full, and continues without loss after the disk is enlarged."""
    if reason := forbidden():
        pytest.skip(f"nothing can be mounted here: {reason}")
    folder = tmp_path / "disk"
    folder.mkdir()
    script = str(Path(__file__).with_name("small_disk.py"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*ALONE, sys.executable, script, str(folder), options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is lost" in done.stdout
