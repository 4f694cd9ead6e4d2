"""Loading the code that a project's configuration names: the trusted bytes run, and nothing else of the project."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orch_protocol.agent.project import ProjectCode
from orch_protocol.core.errors import ConfigError
from orch_protocol.hooks.options import HookOptions
from orch_worker.hooks.loader import configured_hooks
from orch_worker.policy.policy_callback import load_policy_function
from orch_worker.system import importing
from orch_worker.system.project_code import digests_of, read_files, use_trusted_code
from orch_worker.system.trust_file import TrustFile

RULES = """
import importlib
from house_lib import MARK

def judge(call, rules):
    return MARK

def later(name):
    return importlib.import_module(name)
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the modules and the pinned files of a test."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(importing, "_files", {})
    monkeypatch.setattr(importing, "_pinned_finder", importing._PinnedFinder())
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "house" in name:
            del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project, on the import path."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "house_rules.py").write_text(RULES)
    (folder / "house_lib.py").write_text("MARK = 'good'\n")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def trusted(project: Path, *modules: str, files: tuple[str, ...] = ()) -> ProjectCode:
    """Return the code with its present content trusted."""
    code = ProjectCode(str(project), str(project.parent / "trust.json"), modules, files=files)
    TrustFile(Path(code.trust)).accept(project, digests_of(read_files(code)))
    return code


def test_the_trusted_bytes_run_although_the_files_change_after_the_check(project: Path) -> None:
    """A file can change between the check and an import, or before an import in a function."""
    use_trusted_code(trusted(project, "house_rules"))
    (project / "house_rules.py").write_text("def judge(call, rules): return 'evil'\n")
    (project / "house_lib.py").write_text("MARK = 'evil'\n")
    function = load_policy_function("house_rules:judge")
    assert function(None, None) == "good"  # type: ignore[arg-type]


def test_planted_bytecode_does_not_run(project: Path) -> None:
    """Python prefers a cache whose source has the same time and size."""
    source, other = project / "house_lib.py", project / "other.py"
    other.write_text("MARK = 'evil'\n")
    code = trusted(project, "house_rules")
    cache = importlib.util.cache_from_source(str(source))
    stat = source.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    py_compile.compile(str(other), cfile=cache, dfile=str(source))
    use_trusted_code(code)
    assert load_policy_function("house_rules:judge")(None, None) == "good"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["house_new", "house_names.part"])
def test_modules_that_are_imported_by_computed_names_are_refused(project: Path, name: str) -> None:
    """The check cannot see such imports. Other code of the process may import the module."""
    use_trusted_code(trusted(project, "house_rules"))
    path = project / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("RAN = True\n")
    load_policy_function("house_rules:later")
    with pytest.raises(ImportError, match=r"is not among the files that the user trusted"):
        sys.modules["house_rules"].later(name)
    assert importlib.import_module(name).RAN


def test_changed_code_is_refused_and_named(project: Path) -> None:
    """Nothing is loaded, not even the unchanged files."""
    code = trusted(project, "house_rules")
    (project / "house_lib.py").write_text("MARK = 'evil'\n")
    with pytest.raises(ConfigError, match=r"no longer trusted, because these files changed: house_lib\.py\. Read"):
        use_trusted_code(code)
    assert "house_lib" not in sys.modules


def test_code_is_refused_after_the_trust_was_revoked(project: Path) -> None:
    """The spec of an agent that was spawned earlier still names the code."""
    code = trusted(project, "house_rules")
    TrustFile(Path(code.trust)).revoke(project)
    with pytest.raises(ConfigError, match=r"is not trusted, and its configuration names code"):
        use_trusted_code(code)


def test_a_module_that_did_not_exist_cannot_be_created_later(project: Path) -> None:
    """The check refuses it if it exists at the check, and the import refuses it afterwards."""
    code = trusted(project, "house_later")
    use_trusted_code(code)
    (project / "house_later.py").write_text("def judge(call, rules): return 'evil'\n")
    with pytest.raises(ConfigError, match=r"house_later\.py is not among the files that the user trusted"):
        load_policy_function("house_later:judge")
    with pytest.raises(ConfigError, match=r"these files changed: house_later\.py"):
        use_trusted_code(code)


def test_an_earlier_folder_of_the_import_path_cannot_replace_a_named_module(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first module of this name on the import path would run."""
    code = trusted(project, "house_rules")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "house_rules.py").write_text("def judge(call, rules): return 'evil'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    with pytest.raises(ConfigError, match=r"these files changed: .*/first/house_rules\.py"):
        use_trusted_code(code)


def test_a_hook_file_runs_with_the_trusted_bytes(project: Path) -> None:
    """Hooks of files have no name on the import path."""
    file = project / "house_hooks.py"
    file.write_text("from orch import hook\n@hook('before_output')\ndef sign(event, ctx): ...\n")
    code = trusted(project, files=(str(file),))
    use_trusted_code(code)
    file.write_text("raise SystemExit('evil')\n")
    (hook,) = configured_hooks([str(file)], HookOptions())
    assert hook.row.name.endswith("sign")


def test_installed_packages_are_not_part_of_the_project(project: Path) -> None:
    """An update of a package does not end the trust in a project that uses it."""
    (project / "house_rules.py").write_text("import msgspec, json, orch\n")
    venv = project / ".venv" / "lib" / "site-packages" / "house_lib.py"
    venv.parent.mkdir(parents=True)
    venv.write_text("")
    code = ProjectCode(str(project), "", ("house_rules", "msgspec", "json"))
    assert list(read_files(code)) == [str(project / "house_rules.py")]


def test_a_package_that_is_too_large_is_an_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the limit and what to do."""
    monkeypatch.setattr("orch_worker.system.project_code.MAX_BYTES", 100)
    with pytest.raises(ConfigError, match="put it into a package of its own"):
        read_files(ProjectCode(str(project), "", ("house_rules",)))


@pytest.mark.parametrize("name", ["orch", "orch_worker/planted", "orch_protocol"])
def test_a_file_with_the_name_of_a_package_of_orch_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Code of a project often puts its own folder first on the import path. A worker has not imported `orch` yet."""
    use_trusted_code(trusted(project, "house_rules"))
    path = project / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text("RAN = True\n")
    first = name.partition("/")[0]
    for each in [each for each in sys.modules if each == first or each.startswith(f"{first}.")]:
        monkeypatch.delitem(sys.modules, each)
    with pytest.raises(ImportError, match=r"is not among the files that the user trusted"):
        importlib.import_module(name.replace("/", "."))


def test_packages_of_orch_can_be_imported(project: Path) -> None:
    """Hooks and policy functions import `orch`."""
    use_trusted_code(trusted(project, "house_rules"))
    for name in ("orch.policy.caller", "orch_worker.policy.rules", "orch_protocol.core.errors"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        assert spec.origin.endswith(f"/{name.replace('.', '/')}.py")
