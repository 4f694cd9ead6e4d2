"""Runs the scenario of `agent_life.py` on a disk that is too small, and then with enough space: `small_disk.py <folder>
<options>`.

The program mounts memory at `folder` with the given mount options. The scenario runs until the disk is full, then
continues with more space. The program prints the errors. It runs in its own mount namespace, so that other processes do
not see the mount and the mount ends with the program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos import agent_life
from chaos.injector import forked, waited
from chaos.lost_work import judge, rows

ROOM = "size=50m,nr_inodes=5000"
MAX_LIVES = 60


def mount(*arguments: str) -> None:
    """Mount a file system. Raises CalledProcessError."""
    subprocess.run(["mount", *arguments], check=True)


def main(folder: Path, options: str) -> int:
    """Run until the disk is full, then continue. Return the exit code."""
    mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    home, found, says = folder / "home", folder.with_name("told.jsonl"), folder.with_name("says")
    home.mkdir(mode=0o700)
    (folder / "note.txt").write_text("The port is 4711.\n")
    codes: list[int | None] = []
    while codes[-1:] in ([], [0]) and len(codes) < MAX_LIVES:
        asked = sum("token" in row for row in rows(found))
        codes.append(waited(forked(lambda asked=asked: agent_life.main(home, found, asked), says)))  # type: ignore[misc]
    mount("-o", f"remount,{ROOM}", str(folder))
    asked = sum("token" in row for row in rows(found))
    codes.append(waited(forked(lambda: agent_life.main(home, found, asked, again=True), says)))
    wrong = judge(home, found)
    if codes[-2] != agent_life.GAVE_UP or codes[-1]:
        wrong.append(f"lives ended with {codes}: {says.read_text()[-2000:]}")
    print("\n".join(wrong) or f"{len(codes)} lives, {asked} questions, nothing is lost")
    return bool(wrong)


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
