"""Entry points, test commands and languages from manifests and build files."""

from __future__ import annotations

import pytest

from orch_worker.prompt.languages import languages_of
from orch_worker.prompt.manifests import entry_points, find_test_command


@pytest.mark.parametrize(
    ("name", "content", "commands"),
    [
        (
            "pyproject.toml",
            '[project.scripts]\nzoo = "zoo:main"\n"zoo-x" = "zoo:x"\n[tool.y]\nno = 1',
            ("zoo", "zoo-x"),
        ),
        ("pyproject.toml", '[tool.poetry.scripts] # old\nzoo = "zoo:main"', ("zoo",)),
        ("pyproject.toml", '[project]\nscripts = "no"', ()),
        ("package.json", '{"name": "@zoo/cli", "bin": "./run.js"}', ("cli",)),
        ("package.json", '{"bin": {"zoo": "./run.js", "zoo2": "x"}, "main": "index.js"}', ("zoo", "zoo2")),
        ("package.json", '{"main": "src/index.js"}', ("src/index.js",)),
        ("package.json", '{"bin": ["x"], "main": 3}', ()),
        ("package.json", "[1]", ()),
        (
            "Cargo.toml",
            '[package]\nname = "no"\n[[bin]]\nname = "zoo"\n[[bin]]\npath = "x"\nname = "two"\n',
            ("zoo", "two"),
        ),
        ("go.mod", "module zoo", ()),
    ],
)
def test_entry_points_are_read_from_manifests(name: str, content: str, commands: tuple[str, ...]) -> None:
    """Malformed values are ignored."""
    assert entry_points(name, content.encode()) == commands


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("Makefile", "build: x\n\tcc\ntest: build\n\t./run\n", "make test"),
        ("Makefile", "all check test:\n\t./run\n", "make test"),
        ("Makefile", ".PHONY: test\ntest := 1\ntests:\n\t./test: x\n", ""),
        ("justfile", "@test *args:\n  x\n", "just test"),
        ("justfile", "build test:\n  x\n", ""),
        ("package.json", '{"scripts": {"test": "vitest"}}', "npm test"),
        ("package.json", '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}', ""),
        ("package.json", '{"scripts": "x"}', ""),
        ("pyproject.toml", '[dependency-groups]\ndev = ["pytest>=8"]', "python -m pytest"),
        ("pyproject.toml", '[project]\nname = "zoo"', ""),
        ("pytest.ini", "", "python -m pytest"),
        ("setup.cfg", "[tool:pytest]", "python -m pytest"),
        ("Cargo.toml", "[package]", "cargo test"),
        ("go.mod", "module zoo\n", "go test ./..."),
        ("go.mod", "", ""),
    ],
)
def test_test_command_is_read_from_build_files(name: str, content: str, command: str) -> None:
    """A file without tests has no test command."""
    assert find_test_command(name, content.encode(), [name]) == command


@pytest.mark.parametrize(("lock", "command"), [("pnpm-lock.yaml", "pnpm test"), ("bun.lock", "bun run test")])
def test_lock_file_selects_the_package_manager(lock: str, command: str) -> None:
    """npm is the default."""
    assert find_test_command("package.json", b'{"scripts": {"test": "x"}}', ["package.json", lock]) == command


@pytest.mark.parametrize("name", ["Makefile", "justfile", "package.json", "pyproject.toml", "Cargo.toml", "go.mod"])
@pytest.mark.parametrize("data", [b"a" * 65_536, b"[" * 65_536, b"[[bin]]\n" * 8_192, b"a \n" * 21_000, b"\xff\xfe"])
def test_hostile_build_files_state_nothing(name: str, data: bytes) -> None:
    """Repeated beginnings of a statement are read in linear time."""
    assert entry_points(name, data) == ()
    assert find_test_command(name, data, []) in ("", "cargo test")


def test_languages_are_ordered_by_number_of_files() -> None:
    """At most four languages are listed. Rare languages, documents and data are left out."""
    files = {".py": 60, ".PYI": 20, ".rs": 90, ".md": 900, "": 5, ".sh": 30, ".c": 25, ".h": 4, ".go": 20, ".lua": 1}
    assert languages_of(files) == ("Rust", "Python", "Shell", "C")
    assert languages_of({".py": 99, ".sh": 1}) == ("Python",)
    assert languages_of({".md": 3}) == ()
