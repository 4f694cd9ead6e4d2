"""The two environments in `.bench/`. `own` contains a wheel of this checkout, and `peers` contains the programs for
comparison.

A peer is installed when a bench first needs it. Benches measure what a user installs, so they run with the wheel and
never with the checkout. This module uses only the standard library, because it runs before the environments exist. All
its messages go to stderr.
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
    """A peer is not installed. The message is the reason that the row shows."""


def own_python() -> Path:
    """Return the interpreter of an environment with a wheel of the current checkout. Build both if necessary."""
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
    """Return the folder of programs in the environment of peers. The environment contains `requirement`.

    Raises MissingPeerError if `requirement` is not installed and `create` is False, or if it cannot be installed.
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
            # Install programs only from wheels, because a locally compiled program would be a different peer on each
            # machine.
            _pip(python, "install", "--only-binary", name, requirement)
        except (subprocess.SubprocessError, OSError) as error:
            raise MissingPeerError(f"{name} could not be installed: {error}") from error
        stamp.write_text(requirement)
    return python.parent


def reexec_in_own() -> None:
    """Run the same command with the interpreter of `own`, unless this process already uses it.

    If this process already uses it, raise an error if the checkout is on the import path.
    """
    if Path(sys.prefix) != SCRATCH / "own":
        python = str(own_python())
        sys.stdout.flush()
        os.execve(python, [python, *sys.argv], passed_on(os.environ))
    import orch

    if not Path(orch.__file__).is_relative_to(sys.prefix):
        sys.exit(f"orch comes from {orch.__file__}, not from the wheel under {sys.prefix}: unset what puts it there")


def passed_on(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `env` for a bench. Variables that name a checkout or configure orch are left out."""
    ours = ("PYTHONPATH", "ORCH_")
    return {name: value for name, value in env.items() if not name.startswith(ours)}


def _text(file: Path) -> str | None:
    return file.read_text() if file.exists() else None


def _python(name: str) -> Path:
    return SCRATCH / name / "bin" / "python"


def _venv(name: str) -> None:
    print(f"making {SCRATCH / name} ...", file=sys.stderr)
    # Use the base interpreter. In a venv that was made from a venv, sys.executable would be the interpreter of the
    # first venv.
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", str(SCRATCH / name)], check=True, stdout=sys.stderr)


def _pip(python: Path, verb: str, *arguments: str) -> None:
    command = [str(python), "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *arguments]
    print(f"pip {verb} {' '.join(arguments)} ...", file=sys.stderr)
    subprocess.run(command, check=True, stdout=sys.stderr, stdin=subprocess.DEVNULL, timeout=INSTALL_SECONDS)


def _digest() -> str:
    """Return a hash of the interpreter and of every file that the wheel contains."""
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
