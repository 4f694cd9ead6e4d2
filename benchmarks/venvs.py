"""The two environments under `.bench/`: `own` with a wheel of this checkout, `peers` with what it is compared to.

Each peer is installed when a bench first needs it, and only that one.

Benches measure what a user installs, so they run against the wheel and never against the checkout. Standard library
only: this runs before either environment exists. Everything it says goes to stderr.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".bench"
SOURCES = ("pyproject.toml", "constraints.txt", "README.md", "orchestrator", "worker", "protocol")
RAY, RIPGREP = "ray>=2.40", "ripgrep>=14"
PEERS = (RAY, RIPGREP)
INSTALL_SECONDS = 1200


class MissingPeerError(Exception):
    """A peer is not installed; the message is the reason a row shows."""


def own_python() -> Path:
    """Return the interpreter that has a wheel of the checkout as it is now, building both when needed."""
    with _locked("own"):
        python, stamp, digest = _python("own"), SCRATCH / "own.stamp", _digest()
        if not python.exists() or not stamp.exists() or stamp.read_text() != digest:
            fresh = not python.exists()
            if fresh:
                _venv("own")
            shutil.rmtree(SCRATCH / "dist", ignore_errors=True)
            _pip(python, "wheel", "--no-deps", "--wheel-dir", str(SCRATCH / "dist"), str(ROOT))
            (wheel,) = (SCRATCH / "dist").glob("orch_agents-*.whl")
            _pip(python, "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
            if not fresh:
                _pip(python, "install", "--no-deps", "--force-reinstall", str(wheel))
            stamp.write_text(digest)
    return python


def peer(requirement: str, *, create: bool) -> Path:
    """Return the folder of programs of the environment of peers, with `requirement` in it.

    Raises MissingPeerError when that is not installed, and `create` is false or it cannot be.
    """
    name = requirement.partition(">")[0]
    venv = SCRATCH / "peers"
    python, made, stamp = _python("peers"), venv / "made", venv / f"{name}.stamp"
    with _locked("peers"):
        usable = python.exists() and _text(made) == sys.version
        if usable and _text(stamp) == requirement:
            return python.parent
        if not create:
            raise MissingPeerError(f"{name} is not installed: run `make bench-peers`")
        try:
            if not usable:
                shutil.rmtree(venv, ignore_errors=True)
                _venv("peers")
                made.write_text(sys.version)
            # Programs come as wheels or not at all: what a compiler here makes of them is another peer elsewhere.
            _pip(python, "install", "--only-binary", name, requirement)
        except (subprocess.SubprocessError, OSError) as error:
            raise MissingPeerError(f"{name} could not be installed: {error}") from error
        stamp.write_text(requirement)
    return python.parent


def reexec_in_own() -> None:
    """Become the same command under `own`'s interpreter, unless this is it; then refuse a checkout on the path."""
    if Path(sys.prefix) != SCRATCH / "own":
        python = str(own_python())
        sys.stdout.flush()
        os.execve(python, [python, *sys.argv], passed_on(os.environ))
    import orch

    if not Path(orch.__file__).is_relative_to(sys.prefix):
        sys.exit(f"orch comes from {orch.__file__}, not from the wheel under {sys.prefix}: unset what puts it there")


def passed_on(env: Mapping[str, str]) -> dict[str, str]:
    """Return what of `env` a bench is run with: nothing that leads to a checkout or sets orch."""
    ours = ("PYTHONPATH", "ORCH_")
    return {name: value for name, value in env.items() if not name.startswith(ours)}


def _text(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


def _python(name: str) -> Path:
    return SCRATCH / name / "bin" / "python"


def _venv(name: str) -> None:
    print(f"making {SCRATCH / name} ...", file=sys.stderr)
    # The base interpreter: a venv made from a venv would resolve sys.executable through both.
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", str(SCRATCH / name)], check=True, stdout=sys.stderr)


def _pip(python: Path, verb: str, *arguments: str) -> None:
    command = [str(python), "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *arguments]
    print(f"pip {verb} {' '.join(arguments)} ...", file=sys.stderr)
    subprocess.run(command, check=True, stdout=sys.stderr, stdin=subprocess.DEVNULL, timeout=INSTALL_SECONDS)


def _digest() -> str:
    """Return a hash of the interpreter and of every file that goes into the wheel."""
    digest = hashlib.sha256(sys.version.encode())
    for source in SOURCES:
        path = ROOT / source
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@contextmanager
def _locked(name: str) -> Iterator[None]:
    SCRATCH.mkdir(exist_ok=True)
    with open(SCRATCH / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    missing = []
    for wanted in PEERS:
        try:
            print(f"{wanted} is in {peer(wanted, create=True)}")
        except MissingPeerError as error:
            missing.append(str(error))
    sys.exit("\n".join(missing) or 0)
