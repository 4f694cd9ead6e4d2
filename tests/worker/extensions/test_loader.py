"""Extensions in a worker: each is loaded completely or not at all, and only as its manifest permits."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.prompts import PromptPart
from orch_protocol.hooks.events import AfterSystemPrompt, BeforeSystemPrompt, ProviderRequest
from orch_protocol.resources.extensions import ExtensionPermissions, ExtensionSpec, Manifest
from orch_worker.extensions.loader import FolderExtension, load, load_all, read_manifest
from orch_worker.system import importing
from orch_worker.system.folder_digest import digest_of
from orch_worker.system.trust_file import TrustFile

GOOD = """
def register(extension):
    @extension.hook("tool_result")
    def shout(event, ctx):
        return event.patch(text=event.text.upper())

    @extension.tool
    def count_words(text: str) -> int:
        "Count words."
        return len(text.split())
"""
SENT = ProviderRequest(provider="p", model="m", system="x", tools=(), messages=(), tail="z")
PERMISSIONS = ExtensionPermissions(("tool_result",), ("count_words",))


def written(
    folder: Path, code: str = GOOD, name: str = "pack", permissions: ExtensionPermissions = PERMISSIONS
) -> ExtensionSpec:
    """Write an extension to its own folder, and return its spec."""
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "extension.py").write_text(code)
    lists = {"stages": permissions.stages, "tools": permissions.tools, "tiers": permissions.tiers}
    lists |= {"commands": permissions.commands}
    fields = "\n".join(f"{kind} = {list(values)}" for kind, values in lists.items())
    (place / "extension.toml").write_text(f'name = "{name}"\n[permissions]\n{fields}\n')
    return ExtensionSpec(str(place), Manifest(name, permissions=permissions), permissions.tools)


def test_extension_registers_hooks_and_tools(tmp_path: Path) -> None:
    """Hooks have the extension's name and source."""
    found = load_all([written(tmp_path)])
    assert [(hook.row.name, hook.row.source) for hook in found.hooks] == [("pack.shout", "extension: pack")]
    assert [tool.name for tool in found.tools] == ["count_words"]
    assert found.left_out == ()


def test_extension_tools_need_a_grant(tmp_path: Path) -> None:
    """A tool that the agent was not granted is not loaded."""
    spec = written(tmp_path)
    found = load_all([ExtensionSpec(spec.path, spec.manifest)])
    assert (len(found.hooks), found.tools) == (1, ())


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (GOOD + "    raise ValueError('half way')", "ValueError: half way"),
        ("import nowhere", "No module named 'nowhere'"),
        ("register = 1", "has no function register"),
        ("def register(extension): raise SystemExit(3)", "SystemExit: 3"),
        (GOOD.replace('"tool_result"', '"before_output"'), "permissions.stages does not contain 'before_output'"),
        (GOOD.replace('"tool_result"', '"post-tool", "*"'), "permissions.stages does not contain '\\*'"),
        (GOOD.replace('"tool_result"', '"tool_resutl"'), "did you mean 'tool_result'"),
        (GOOD.replace("count_words", "count"), "permissions.tools does not contain 'count'"),
        (GOOD + "    extension.tool(count_words)", "two tools 'count_words' in extension 'pack'"),
        (GOOD + "    extension.hook('tool_result')(shout)", "two hooks 'shout' in extension 'pack'"),
    ],
)
def test_broken_extension_is_skipped_as_a_whole(tmp_path: Path, code: str, why: str) -> None:
    """The reason is reported, and other extensions are loaded."""
    other = written(tmp_path, GOOD.replace("count_words", "words"), "other", ExtensionPermissions(("*",), ("words",)))
    found = load_all([written(tmp_path, code), other])
    assert [hook.row.name for hook in found.hooks] == ["other.shout"]
    assert [tool.name for tool in found.tools] == ["words"]
    [line] = found.left_out
    assert line.startswith("extension 'pack' is left out: ")
    with pytest.raises(ConfigError, match=why):
        load(written(tmp_path, code))


def test_extension_modules_can_be_imported_relatively(tmp_path: Path) -> None:
    """Modules of two extensions do not collide."""
    for name, word in (("one", "first"), ("two", "second")):
        written(tmp_path, "from .helper import WORD\ndef register(extension):\n    extension.WORD = WORD", name)
        (tmp_path / name / "helper.py").write_text(f"WORD = {word!r}\n")
    words = [load(written(tmp_path, (tmp_path / name / "extension.py").read_text(), name)) for name in ("one", "two")]
    assert [vars(each)["WORD"] for each in words] == ["first", "second"]


class TestManifest:
    """The manifest of an extension."""

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ('name = "other"', "name is 'other', but the folder is 'pack'"),
            ('name = "Pack!"', "matching regex"),
            ("name =", "Invalid value"),
            ('name = "pack"\ncolour = 1', "unknown field `colour`"),
            ('name = "pack"\n[permissions]\nstages = ["tool_cal"]', "did you mean 'tool_call'"),
            ('name = "pack"\n[permissions]\nstages = ["post-tool"]', "write 'tool_result' for 'post-tool'"),
            ('name = "pack"\n[permissions]\ntools = ["bash"]', "'bash' is the name of a built-in tool"),
            ('name = "pack"\n[permissions]\ntiers = ["best"]', "best"),
        ],
    )
    def test_invalid_manifest_names_file_and_problem(self, tmp_path: Path, text: str, why: str) -> None:
        """The error names the file and the problem."""
        written(tmp_path)
        (tmp_path / "pack" / "extension.toml").write_text(text)
        with pytest.raises(ConfigError, match=why) as raised:
            read_manifest(tmp_path / "pack")
        assert "extension.toml" in str(raised.value)

    def test_unknown_permission_is_an_error(self, tmp_path: Path) -> None:
        """A misspelled permission is an error, so that it is noticed."""
        written(tmp_path)
        (tmp_path / "pack" / "extension.toml").write_text('name = "pack"\n[permissions]\nstage = ["*"]')
        with pytest.raises(ConfigError, match=r"unknown field `stage` - at `\$\.permissions`"):
            read_manifest(tmp_path / "pack")

    def test_trusted_extension_cannot_import_other_modules_of_the_project(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The trust covers the folder of the extension only. Its own modules and installed packages can be imported."""
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        monkeypatch.setattr(importing, "_pinned_finder", importing._PinnedFinder())
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / "beside_the_extension.py").write_text("")
        folder = tmp_path / ".orch" / "extensions"
        folder.mkdir(parents=True)
        specs = []
        for name, line in {"own": "from . import part", "other": "import beside_the_extension"}.items():
            spec = written(folder, f"import msgspec\n{line}\n{GOOD}", name)
            (folder / name / "part.py").write_text("")
            specs.append(msgspec.structs.replace(spec, trust=str(tmp_path / "trusted.json")))
            TrustFile(tmp_path / "trusted.json").accept(spec.path, digest_of(folder / name))
        assert load(specs[0]).tools
        with pytest.raises(ConfigError, match=r"beside_the_extension\.py is not among the files that the user trusted"):
            load(specs[1])

    def test_extension_changed_after_the_spawn_is_not_loaded(self, tmp_path: Path) -> None:
        """The agent has the permissions of the manifest at the time of the spawn."""
        spec = written(tmp_path)
        written(tmp_path, permissions=ExtensionPermissions(("*",), ("count_words",)))
        with pytest.raises(ConfigError, match="manifest was changed"):
            load(spec)


class TestTiers:
    """Tiers of the prompt that an extension may change."""

    def asked(self, *tiers: Any, **said: Any) -> Any:
        """Return the patch of a hook that returns `said`, in an extension that may change `tiers`."""
        extension = FolderExtension(
            Manifest("pack", permissions=ExtensionPermissions(("before_system_prompt",), tiers=tiers))
        )
        extension.register_hook(lambda _event, _ctx: said, "before_system_prompt", name="say")
        event = BeforeSystemPrompt(parts=(PromptPart("identity", "x", "stable"), PromptPart("time", "y", "volatile")))
        return extension.hooks[0].handler(event, None)

    def test_permitted_tiers_can_be_changed(self) -> None:
        """Adding, replacing and dropping parts work as without an extension."""
        patch = self.asked("volatile", add=(PromptPart("more", "z", "volatile"),), drop=("time",))
        assert (patch.add[0].name, patch.drop) == ("more", ("time",))

    @pytest.mark.parametrize(
        "expected",
        [
            {"add": (PromptPart("more", "z", "stable"),)},
            {"drop": ("identity",)},
            {"replace": (PromptPart("identity", "z", "volatile"),)},
        ],
    )
    def test_changing_another_tier_is_an_error(self, expected: dict[str, Any]) -> None:
        """The whole change is discarded."""
        with pytest.raises(PermissionError, match=r"permissions.tiers has no 'stable'"):
            self.asked("volatile", **expected)

    @pytest.mark.parametrize(
        ("event", "expected", "tier"),
        [
            (AfterSystemPrompt(text="x"), {"text": "y"}, "stable"),
            (SENT, {"system": "y"}, "stable"),
            (SENT, {"tail": "y"}, "volatile"),
        ],
    )
    def test_prompt_texts_belong_to_tiers(self, event: Any, expected: dict[str, Any], tier: Any) -> None:
        """The system text is stable, and the end of a request is volatile. Unchanged text needs no permission."""
        for tiers, wanted in (((), pytest.raises(PermissionError, match=f"no '{tier}'")), ((tier,), nullcontext())):
            extension = FolderExtension(Manifest("pack", permissions=ExtensionPermissions((event.stage,), tiers=tiers)))
            extension.register_hook(lambda _event, _ctx: expected, event.stage, name="say")
            with wanted:
                extension.hooks[0].handler(event, None)
            extension.register_hook(lambda event, _ctx: {name: getattr(event, name) for name in expected}, event.stage)
            extension.hooks[1].handler(event, None)

    async def test_async_extension_hooks_have_the_same_tier_limits(self) -> None:
        """The result of an asynchronous hook is checked in the same way."""
        extension = FolderExtension(Manifest("pack", permissions=ExtensionPermissions(("before_system_prompt",))))

        async def say(_event: Any, _ctx: Any) -> Any:
            return {"add": (PromptPart("more", "z", "context"),)}

        extension.register_hook(say, "before_system_prompt")
        assert extension.hooks[0].row.aside
        with pytest.raises(PermissionError):
            await extension.hooks[0].handler(BeforeSystemPrompt(parts=()), None)


class TestDigest:
    """The hash of an extension's content, which trust depends on."""

    def test_digest_changes_with_every_content_change(self, tmp_path: Path) -> None:
        """Contents, names and new files count, but compiled files do not."""
        written(tmp_path)
        place = tmp_path / "pack"
        seen = {digest_of(place)}
        (place / "__pycache__").mkdir()
        (place / "__pycache__" / "x.pyc").write_text("x")
        assert digest_of(place) in seen
        for change in (
            lambda: (place / "extension.py").write_text(GOOD + " "),
            lambda: (place / "new.py").write_text(""),
            lambda: (place / "new.py").rename(place / "newer.py"),
        ):
            change()
            assert digest_of(place) not in seen
            seen.add(digest_of(place))

    def test_digest_refuses_symbolic_links(self, tmp_path: Path) -> None:
        """A link's target can change without the folder changing."""
        written(tmp_path)
        (tmp_path / "elsewhere.py").write_text("")
        (tmp_path / "pack" / "helper.py").symlink_to(tmp_path / "elsewhere.py")
        with pytest.raises(ConfigError, match=r"helper.py is not a regular file"):
            digest_of(tmp_path / "pack")


def test_undeclared_or_duplicate_commands_disable_the_extension(tmp_path: Path) -> None:
    """Without the permission, or with a duplicate name, the whole extension is left out."""
    code = 'def register(extension):\n    extension.register_slash_command("todo", lambda args, ctx: "")\n'
    spec = written(tmp_path, code, permissions=ExtensionPermissions(commands=("todo",)))
    assert [each.row.source for each in load_all([spec]).commands] == ["extension pack"]
    [why] = load_all([written(tmp_path, code, permissions=ExtensionPermissions())]).left_out
    assert "permissions.commands does not contain 'todo'" in why
    twice = f'{code}    extension.command("more", aliases=["todo"])(lambda args, ctx: "")\n'
    [why] = load_all([written(tmp_path, twice, permissions=ExtensionPermissions(commands=("todo", "more")))]).left_out
    assert "two commands /todo in extension 'pack'" in why


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        ('[keys]\n"ctrl-t" = "/todo"', "'ctrl-t' is not a key"),
        ('[keys]\n"c-c" = "/todo"', "'c-c' is reserved for typing, sending, leaving or interrupting"),
        ('[keys]\n"c-t" = "todo"', "invalid command 'todo': it must start with a slash"),
        ('[[widgets]]\nname = "x"\ncommand = "count"', "invalid command 'count'"),
        ('[[widgets]]\nname = "x"\ncommand = "/x"\nplace = "moon"', "moon"),
    ],
)
def test_key_bindings_and_widgets_are_checked_before_any_code_runs(tmp_path: Path, expected: str, why: str) -> None:
    """An invalid binding or widget raises ConfigError when the manifest is read."""
    written(tmp_path)
    (tmp_path / "pack" / "extension.toml").write_text(f'name = "pack"\n{expected}\n')
    with pytest.raises(ConfigError, match=why):
        read_manifest(tmp_path / "pack")
