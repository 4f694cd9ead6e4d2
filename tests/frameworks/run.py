"""Run the tests of each framework in a venv of its own, with pinned versions.

    python tests/frameworks/run.py [NAME ...] [-- ARGUMENTS OF PYTEST]

The venvs are in .ci/frameworks. This module uses only the standard library, because it runs before they exist.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".ci" / "frameworks"
FRAMEWORKS = {
    "openai_agents": ("openai-agents==0.24.0",),
    "langchain": (
        "langchain==1.5.2",
        "langgraph==1.2.24",
        "langgraph-checkpoint-sqlite==3.1.2",
        "langchain-anthropic==1.7.10",
        "langchain-openai==1.7.4",
        "deepagents==0.7.32",
    ),
    "pydantic_ai": ("pydantic-ai-slim[anthropic,dbos,openai]==2.68.0", "dbos==3.4.0"),
    "claude_agent_sdk": ("claude-agent-sdk==0.2.189",),
}
"""The packages of each framework. `tests/frameworks/test_NAME.py` contains its tests."""
SDKS = ("anthropic", "httpx2", "openai")
FOR_TESTS = ("hypothesis", "psutil", "pytest", "pytest-asyncio", "pytest-timeout")
OPTIONS = ("-W", "ignore", "-p", "no:unraisableexception", "--timeout", "180")
"""Warnings of frameworks, for example about connections that they leave open, do not fail tests. Imports take long."""
INSTALL_SECONDS = 600


def pins() -> str:
    """Return the pins of the SDKs and of the packages for tests. Frameworks need other versions of other packages."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if line.partition("==")[0] in (*SDKS, *FOR_TESTS))


def venv(name: str) -> Path:
    """Return the interpreter of the venv of a framework. Make the venv if necessary."""
    folder = VENVS / name
    python, stamp = folder / "bin" / "python", folder / "made"
    wanted = "\n".join([sys.version, *FRAMEWORKS[name], *FOR_TESTS, (ROOT / "pyproject.toml").read_text()])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making {folder} ...", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        base = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraints = folder / "constraints.txt"
        constraints.write_text(pins())
        packages = ["--constraint", str(constraints), *FRAMEWORKS[name], *FOR_TESTS, "--editable", str(ROOT)]
        subprocess.run([*install, *packages], check=True, timeout=INSTALL_SECONDS)
        stamp.write_text(wanted)
    return python


def main(arguments: list[str]) -> int:
    """Run the tests of the named frameworks, or of all. Return the first exit code that is not 0."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:split] or list(FRAMEWORKS), arguments[split + 1 :]
    codes = []
    for name in names:
        command = [str(venv(name)), "-m", "pytest", "-m", "external", "-q", f"tests/frameworks/test_{name}.py"]
        codes.append(subprocess.run([*command, *OPTIONS, *options], cwd=ROOT, check=False).returncode)
    return next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
