"""The sdist and the wheel that is built from it, installed into empty venvs.

The tests in CI use no network: the venv contains the wheel, and links to its dependencies. `make external` installs the
wheel with its dependencies from the package index, on each Python that is found, without extras and with each extra.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from orch.config.version import __version__
from source_tree import PACKAGES, ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"].keys() - {"test"})
VERSIONS = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
NEEDS_AN_EXTRA = {"orch.notebook.magic": "IPython"}
"""Modules that import a package of an extra when they are imported."""
DOCKER = ROOT / "examples" / "docker"
PYTHONS = (
    *(Path(folder) for folder in os.get_exec_path()),
    *Path.home().glob(".pyenv/versions/*/bin"),
    *Path.home().glob(".local/share/uv/python/*/bin"),
)
"""The folders in which interpreters are looked for."""

IMPORT_ALL = """
import importlib, json, pkgutil, sys

missing, imported = {}, 0
for package in ("orch_protocol", "orch_worker", "orch"):
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(module.__path__, package + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
            imported += 1
        except ModuleNotFoundError as error:
            missing[found.name] = error.name.partition(".")[0]
print(json.dumps({"missing": missing, "imported": imported, "file": sys.modules["orch"].__file__}))
"""
AGENT = """
from orch import Orchestrator, ScriptedBackend

call = {"tool": "bash", "input": {"command": "echo $((40 + 2))"}}
with Orchestrator() as o:
    agent = o.spawn("Count", tools=["bash"], backend=ScriptedBackend([call, "Done."]))
    print(agent.query("Begin.").text, agent.show().messages[2].content[0].content[0].text.splitlines()[0])
"""
COPY_EXAMPLE = """
import sys
from pathlib import Path
from orch.demo import bug_hunt

bug_hunt.copy_project(Path(sys.argv[1]))
print(len(bug_hunt.read_script().steps))
"""
ERRORS = """
import os, socket, threading
from orch import Orchestrator, OrchError

def attempt(model, prompt, **env):
    try:
        with Orchestrator(model, env=env) as o:
            agent = o.spawn("Count", tools=[])
            return agent.query(prompt, timeout=5).text if prompt else agent.state().status
    except OrchError as error:
        return str(error)

"""
USES = {
    "bedrock": (
        ERRORS + "print(attempt('bedrock:us.anthropic.claude-sonnet-5-5-v1:0', '', AWS_REGION='us-east-1', "
        "AWS_ACCESS_KEY_ID='id', AWS_SECRET_ACCESS_KEY='key'))",
        "idle",
        "pip install 'orch-agents[bedrock]'",
    ),
    "jupyter": (
        "try:\n    import orch.notebook.magic as found\nexcept ImportError as error:\n    found = error\nprint(found)",
        "module 'orch.notebook.magic'",
        "No module named 'IPython'",
    ),
    "plot": (
        "import sys; from orch.cli import run; run(['replay', sys.argv[1] + '/session.jsonl', '--plot', 'chart.svg'])",
        "Drawn: chart.svg",
        "pip install 'orch-agents[plot]'",
    ),
    "socks": (
        ERRORS
        + """
proxy, greetings = socket.create_server(("127.0.0.1", 0)), []

def serve():
    while connected := proxy.accept()[0]:
        with connected:
            greetings.append(connected.recv(1))

threading.Thread(target=serve, daemon=True).start()
os.environ["ALL_PROXY"] = url = f"socks5://127.0.0.1:{proxy.getsockname()[1]}"
error = attempt("anthropic:claude-sonnet-5-5", "Begin.", ANTHROPIC_API_KEY="key", ALL_PROXY=url)
print(f"SOCKS version {greetings[0][0]}" if greetings else error)
""",
        "SOCKS version 5",
        "pip install 'orch-agents[socks]'",
    ),
    "vertex": (
        ERRORS + "print(attempt('vertex:claude-sonnet-5-5', '', CLOUD_ML_REGION='europe-west1', "
        "ANTHROPIC_VERTEX_PROJECT_ID='project', GOOGLE_APPLICATION_CREDENTIALS='credentials.json'))",
        "idle",
        "pip install 'orch-agents[vertex]'",
    ),
}
"""By extra: a program that needs it, and what the program prints with the extra and without it."""


def closure(requirements: list[str]) -> set[str]:
    """Return the names of the distributions that `requirements` install, without extras."""
    found: set[str] = set()
    waiting = [*requirements]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in found:
            found.add(name)
            waiting += distribution(name).requires or ()
    return found


def link_distributions(names: set[str], folder: Path) -> None:
    """Create links in `folder` to each top-level package and module of the installed distributions `names`."""
    folder.mkdir()
    for name in names:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(found.locate_file(top)))


class Venv:
    """A venv with an installed wheel. Its programs see neither the checkout nor the variables of the tests."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.bin, self.home = folder / "venv" / "bin", folder / "home"
        self.home.mkdir()
        run([python, "-m", "venv", "--without-pip", str(folder / "venv")])

    def install(self, *arguments: str, seconds: float = 50) -> None:
        """Run `pip install` in the venv, with the pip of the tests."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.bin / "python")]
        run([*pip, "install", "--quiet", *arguments], seconds=seconds)

    def python(self, code: str, *arguments: str) -> str:
        """Return what the program `code` prints on standard output and standard error."""
        return self.run("python", "-I", "-c", code, *arguments)

    def run(self, command: str, *arguments: str) -> str:
        """Return what a command of the venv prints. A status other than 0 is not an error."""
        env = {"PATH": f"{self.bin}:{os.defpath}", "HOME": str(self.home), "ORCH_HOME": str(self.home / "orch")}
        return subprocess.run(
            [str(self.bin / command), *arguments],
            cwd=self.home,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=55,
            check=False,
        ).stdout


def run(command: list[str], folder: Path = ROOT, seconds: float = 50) -> str:
    """Return the output of a command. If the command fails, the test fails with the output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """Return the distribution of this kind that is built from the files in `source`."""
    run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)], source)
    (built,) = folder.iterdir()
    return built


def files_of(wheel: Path) -> set[str]:
    """Return the names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, built from the checkout."""
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist, as pip does where no wheel is published."""
    source = tmp_path_factory.mktemp("source")
    run(["tar", "-xzf", str(sdist)], source)
    (project,) = source.iterdir()
    return build("wheel", project, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """A venv in which only the wheel, its declared dependencies and their dependencies can be imported."""
    folder = tmp_path_factory.mktemp("installed")
    made = Venv(folder)
    made.install("--no-deps", "--no-index", "--no-compile", str(wheel))
    link_distributions(closure(PROJECT["dependencies"]), folder / "dependencies")
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{folder / 'dependencies'}\n")
    return made


def test_sdist_holds_every_file_of_the_repository(sdist: Path) -> None:
    """Tests, documentation and the build files are in the sdist, so that it can be built and tested again."""
    tracked = set(run(["git", "ls-files", "-z"]).split("\0")) - {""}
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert tracked - packed == set()


def test_wheel_has_the_name_and_version_of_the_project(wheel: Path) -> None:
    """The version is declared once, in the module that `orch --version` imports.

    The wheel is not named `orch`, because this name on the package index belongs to another project.
    """
    assert wheel.name == f"orch_agents-{__version__}-py3-none-any.whl"
    top = {name.partition("/")[0] for name in files_of(wheel)}
    assert top == {*PACKAGES, f"orch_agents-{__version__}.dist-info"}


def test_every_module_imports_from_the_wheel_without_extras(venv: Venv) -> None:
    """Modules are imported from the venv. Only the modules of an extra need another package."""
    result = json.loads(venv.python(IMPORT_ALL))
    assert Path(result["file"]).is_relative_to(venv.bin.parent)
    assert result["missing"] == NEEDS_AN_EXTRA
    modules = sum(1 for package, folder in PACKAGES.items() for _ in (ROOT / folder / package).rglob("*.py"))
    assert result["imported"] + len(result["missing"]) >= modules - len(PACKAGES) * 2


def test_installed_command_and_agents_work(venv: Venv) -> None:
    """The venv has the command `orch`. Workers start with the interpreter of the venv and run tools."""
    assert venv.run("orch", "--version").strip() == f"orch {__version__}"
    assert venv.python(AGENT) == "Done. 42\n"


def test_demo_finds_its_example_in_the_wheel(venv: Venv, tmp_path: Path) -> None:
    """The package contains the script and all files of the example, so that the demo needs no checkout."""
    example = ROOT / "examples" / "bug_hunt"
    steps = [step for turn in json.loads((example / "script.json").read_text())["turns"] for step in turn["steps"]]
    assert int(venv.python(COPY_EXAMPLE, str(tmp_path / "copy"))) == len(steps)

    def files(folder: Path) -> dict[str, bytes]:
        found = (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc")
        return {str(file.relative_to(folder)): file.read_bytes() for file in found}

    assert files(tmp_path / "copy") == files(example / "project")


def test_each_extra_has_a_program_that_needs_it() -> None:
    """The tests with the package index cover every extra, and every version of Python in the classifiers."""
    assert sorted(USES) == EXTRAS
    assert VERSIONS


class TestDockerfile:
    """examples/docker/Dockerfile, without Docker. These tests do not show that the image can be built."""

    @pytest.fixture
    def instructions(self) -> list[tuple[str, str]]:
        """The instructions of the file, in order, each with its arguments."""
        lines = (DOCKER / "Dockerfile").read_text().splitlines()
        found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
        return [(name, arguments) for name, _, arguments in found]

    def test_copies_what_the_build_needs(
        self, instructions: list[tuple[str, str]], wheel: Path, tmp_path: Path
    ) -> None:
        """A wheel that is built from the copied files has the same files as the wheel from the sdist."""
        copied = [arguments.split() for name, arguments in instructions if name == "COPY" and "--from" not in arguments]
        for *sources, target in copied:
            for source in sources:
                place = tmp_path / "source" / (source if target == "./" else target)
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                place.parent.mkdir(parents=True, exist_ok=True)
                copy(ROOT / source, place)
        built = build("wheel", tmp_path / "source", tmp_path / "wheel")
        assert files_of(built) == files_of(wheel)
        kept = re.findall(r"^!(.+)$", (DOCKER / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
        assert kept == [source for *sources, _ in copied for source in sources]

    def test_starts_the_command_without_privileges(self, instructions: list[tuple[str, str]]) -> None:
        """The base has a version of Python that the project names. The last user is not the superuser."""
        last = dict(instructions)
        assert {arguments.split()[0] for name, arguments in instructions if name == "FROM"} == {
            f"python:{VERSIONS[-1]}-slim"
        }
        assert (last["ENTRYPOINT"], last["USER"]) == ('["orch"]', "orch")
        assert "orch" in PROJECT["scripts"]

    def test_page_names_the_paths_of_the_image(self, instructions: list[tuple[str, str]]) -> None:
        """The commands of the page build this file, and mount the folders in which the image works."""
        page = (ROOT / "docs" / "reference" / "platforms.md").read_text()
        last = dict(instructions)
        (file,) = re.findall(r"docker build -f (\S+) ", page)
        assert ROOT / file == DOCKER / "Dockerfile"
        assert set(re.findall(r" -v \S+?:(\S+)", page)) == {last["WORKDIR"], last["VOLUME"]}
        assert f"ORCH_HOME={last['VOLUME']}" in last["ENV"].split()
        assert set(re.findall(r"--build-arg (\w+)=", page)) == {last["ARG"].partition("=")[0]}


def interpreter(version: str) -> str:
    """Return an interpreter of this version of Python, such as "3.12". Skip the test if none is found."""
    for folder in PYTHONS:
        python = folder / f"python{version}"
        works = python.is_file() and subprocess.run([python, "-c", ""], capture_output=True, check=False, timeout=30)
        if works and works.returncode == 0:
            return str(python)
    pytest.skip(f"python{version} is not on PATH, in ~/.pyenv or among those of uv")


@pytest.mark.external
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
class TestFromThePackageIndex:
    """The wheel and its dependencies, installed by pip into an empty venv of each version of Python."""

    def test_works_without_extras(self, version: str, wheel: Path, tmp_path: Path) -> None:
        """Agents work, and so does the demo. A program that needs an extra says how to install it."""
        venv = Venv(tmp_path, interpreter(version))
        venv.install(str(wheel), seconds=600)
        assert venv.python(AGENT) == "Done. 42\n"
        assert "Processes left: 0." in " ".join(venv.run("orch", "demo").split())
        for program, _, without in USES.values():
            assert without in venv.python(program, str(ROOT / "examples" / "bug_hunt"))

    @pytest.mark.parametrize("extra", EXTRAS)
    def test_works_with_an_extra(self, version: str, extra: str, wheel: Path, tmp_path: Path) -> None:
        """The extra contains all packages that its program needs."""
        venv = Venv(tmp_path, interpreter(version))
        venv.install(f"{wheel}[{extra}]", seconds=600)
        program, expected, _ = USES[extra]
        assert expected in venv.python(program, str(ROOT / "examples" / "bug_hunt"))
