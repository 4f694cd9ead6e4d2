"""Extensions in a worker: all of one or nothing, and no more than its manifest permits."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orch_protocol.core.errors import ConfigError
from orch_protocol.core.prompts import PromptPart
from orch_protocol.hooks.events import AfterSystemPrompt, BeforeSystemPrompt, ProviderRequest
from orch_protocol.resources.extensions import ExtensionPermissions, ExtensionSpec, Manifest
from orch_worker.extensions.loader import Extension, load, load_all, read_manifest
from orch_worker.system.folder_digest import digest_of

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
    """Return an extension in a folder of its own."""
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "extension.py").write_text(code)
    lists = {"stages": permissions.stages, "tools": permissions.tools, "tiers": permissions.tiers}
    lists |= {"commands": permissions.commands}
    said = "\n".join(f"{kind} = {list(values)}" for kind, values in lists.items())
    (place / "extension.toml").write_text(f'name = "{name}"\n[permissions]\n{said}\n')
    return ExtensionSpec(str(place), Manifest(name, permissions=permissions), permissions.tools)


def test_it_brings_its_hooks_and_tools(tmp_path: Path) -> None:
    """What it registers is there under its name, and says where it is from."""
    found = load_all([written(tmp_path)])
    assert [(hook.row.name, hook.row.source) for hook in found.hooks] == [("pack.shout", "extension: pack")]
    assert [tool.name for tool in found.tools] == ["count_words"]
    assert found.left_out == ()


def test_tools_are_those_that_were_granted(tmp_path: Path) -> None:
    """A tool that the agent was not granted is not brought."""
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
        (GOOD.replace('"tool_result"', '"before_output"'), "permissions.stages has no 'before_output'"),
        (GOOD.replace('"tool_result"', '"post-tool", "*"'), "permissions.stages has no '\\*'"),
        (GOOD.replace('"tool_result"', '"tool_resutl"'), "did you mean 'tool_result'"),
        (GOOD.replace("count_words", "count"), "permissions.tools has no 'count'"),
        (GOOD + "    extension.tool(count_words)", "it brings two tools 'count_words'"),
        (GOOD + "    extension.hook('tool_result')(shout)", "it brings two hooks 'shout'"),
    ],
)
def test_a_broken_one_is_left_out_whole(tmp_path: Path, code: str, why: str) -> None:
    """Whatever is wrong, nothing of it counts, the reason is told, and the other extensions are there."""
    other = written(tmp_path, GOOD.replace("count_words", "words"), "other", ExtensionPermissions(("*",), ("words",)))
    found = load_all([written(tmp_path, code), other])
    assert [hook.row.name for hook in found.hooks] == ["other.shout"]
    assert [tool.name for tool in found.tools] == ["words"]
    [line] = found.left_out
    assert line.startswith("extension 'pack' is left out: ")
    with pytest.raises(ConfigError, match=why):
        load(written(tmp_path, code))


def test_neighbours_can_be_imported(tmp_path: Path) -> None:
    """Modules beside it are reached by a relative import, and those of two extensions do not meet."""
    for name, word in (("one", "first"), ("two", "second")):
        written(tmp_path, "from .helper import WORD\ndef register(extension):\n    extension.WORD = WORD", name)
        (tmp_path / name / "helper.py").write_text(f"WORD = {word!r}\n")
    words = [load(written(tmp_path, (tmp_path / name / "extension.py").read_text(), name)) for name in ("one", "two")]
    assert [vars(each)["WORD"] for each in words] == ["first", "second"]


class TestManifest:
    """What an extension says of itself."""

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
    def test_one_that_does_not_do_says_why(self, tmp_path: Path, text: str, why: str) -> None:
        """The error names the file and what is wrong in it."""
        written(tmp_path)
        (tmp_path / "pack" / "extension.toml").write_text(text)
        with pytest.raises(ConfigError, match=why) as raised:
            read_manifest(tmp_path / "pack")
        assert "extension.toml" in str(raised.value)

    def test_unknown_permission_is_an_error(self, tmp_path: Path) -> None:
        """A misspelled permission is reported, not ignored."""
        written(tmp_path)
        (tmp_path / "pack" / "extension.toml").write_text('name = "pack"\n[permissions]\nstage = ["*"]')
        with pytest.raises(ConfigError, match="unknown field 'stage'"):
            read_manifest(tmp_path / "pack")

    def test_former_permissions_are_accepted(self, tmp_path: Path) -> None:
        """Manifests and journaled specs that name files, hosts and programs still open; those names have no effect."""
        former = {"reads": ["."], "writes": ["out"], "network": ["*"], "programs": True}
        written(tmp_path)
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in former.items())
        (tmp_path / "pack" / "extension.toml").write_text(f'name = "pack"\n[permissions]\n{lines}')
        assert read_manifest(tmp_path / "pack") == Manifest("pack")
        journaled = {"path": "p", "manifest": {"name": "pack", "permissions": former}}
        assert msgspec.convert(journaled, ExtensionSpec) == ExtensionSpec("p", Manifest("pack"))

    def test_one_that_changed_since_the_spawn_is_not_loaded(self, tmp_path: Path) -> None:
        """An agent has the permissions that were seen when it was spawned."""
        spec = written(tmp_path)
        written(tmp_path, permissions=ExtensionPermissions(("*",), ("count_words",)))
        with pytest.raises(ConfigError, match="manifest was changed"):
            load(spec)


class TestTiers:
    """Parts of the prompt that an extension may touch."""

    def asked(self, *tiers: Any, **said: Any) -> Any:
        """Return what comes of a hook that says `said` of a prompt, in an extension that may touch `tiers`."""
        extension = Extension(
            Manifest("pack", permissions=ExtensionPermissions(("before_system_prompt",), tiers=tiers))
        )
        extension.register_hook(lambda _event, _ctx: said, "before_system_prompt", name="say")
        event = BeforeSystemPrompt(parts=(PromptPart("identity", "x", "stable"), PromptPart("time", "y", "volatile")))
        return extension.hooks[0].handler(event, None)

    def test_parts_of_permitted_tiers_are_changed(self) -> None:
        """Adding, replacing and dropping there is as without an extension."""
        patch = self.asked("volatile", add=(PromptPart("more", "z", "volatile"),), drop=("time",))
        assert (patch.add[0].name, patch.drop) == ("more", ("time",))

    @pytest.mark.parametrize(
        "said",
        [
            {"add": (PromptPart("more", "z", "stable"),)},
            {"drop": ("identity",)},
            {"replace": (PromptPart("identity", "z", "volatile"),)},
        ],
    )
    def test_others_are_not(self, said: dict[str, Any]) -> None:
        """Touching another tier is an error, so that nothing of it counts."""
        with pytest.raises(PermissionError, match=r"permissions.tiers has no 'stable'"):
            self.asked("volatile", **said)

    @pytest.mark.parametrize(
        ("event", "said", "tier"),
        [
            (AfterSystemPrompt(text="x"), {"text": "y"}, "stable"),
            (SENT, {"system": "y"}, "stable"),
            (SENT, {"tail": "y"}, "volatile"),
        ],
    )
    def test_the_text_of_a_prompt_is_of_its_tiers_too(self, event: Any, said: dict[str, Any], tier: Any) -> None:
        """The system text is what is stable, the end of a request what is volatile; what stays as it is is nobody's."""
        for tiers, wanted in (((), pytest.raises(PermissionError, match=f"no '{tier}'")), ((tier,), nullcontext())):
            extension = Extension(Manifest("pack", permissions=ExtensionPermissions((event.stage,), tiers=tiers)))
            extension.register_hook(lambda _event, _ctx: said, event.stage, name="say")
            with wanted:
                extension.hooks[0].handler(event, None)
            extension.register_hook(lambda event, _ctx: {name: getattr(event, name) for name in said}, event.stage)
            extension.hooks[1].handler(event, None)

    async def test_an_async_hook_is_held_too(self) -> None:
        """Awaiting makes no difference."""
        extension = Extension(Manifest("pack", permissions=ExtensionPermissions(("before_system_prompt",))))

        async def say(_event: Any, _ctx: Any) -> Any:
            return {"add": (PromptPart("more", "z", "context"),)}

        extension.register_hook(say, "before_system_prompt")
        assert extension.hooks[0].row.aside
        with pytest.raises(PermissionError):
            await extension.hooks[0].handler(BeforeSystemPrompt(parts=()), None)


class TestDigest:
    """The hash that trust goes by."""

    def test_any_change_changes_it(self, tmp_path: Path) -> None:
        """Contents, names and new files do; what Python compiles does not."""
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

    def test_links_are_refused(self, tmp_path: Path) -> None:
        """What a link leads to can change without the folder changing."""
        written(tmp_path)
        (tmp_path / "elsewhere.py").write_text("")
        (tmp_path / "pack" / "helper.py").symlink_to(tmp_path / "elsewhere.py")
        with pytest.raises(ConfigError, match=r"helper.py is not a regular file"):
            digest_of(tmp_path / "pack")


def test_commands_are_those_that_it_may_bring(tmp_path: Path) -> None:
    """One that its manifest does not name leaves all of it out, as two of one name do."""
    code = 'def register(extension):\n    extension.register_slash_command("todo", lambda args, ctx: "")\n'
    spec = written(tmp_path, code, permissions=ExtensionPermissions(commands=("todo",)))
    assert [each.row.source for each in load_all([spec]).commands] == ["extension pack"]
    [why] = load_all([written(tmp_path, code, permissions=ExtensionPermissions())]).left_out
    assert "permissions.commands has no 'todo'" in why
    twice = f'{code}    extension.command("more", aliases=["todo"])(lambda args, ctx: "")\n'
    [why] = load_all([written(tmp_path, twice, permissions=ExtensionPermissions(commands=("todo", "more")))]).left_out
    assert "it brings two commands 'todo'" in why


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('[keys]\n"ctrl-t" = "/todo"', "'ctrl-t' is no key"),
        ('[keys]\n"c-c" = "/todo"', "'c-c' is what people write, send, leave or interrupt with"),
        ('[keys]\n"c-t" = "todo"', "invalid command 'todo': it must start with a slash"),
        ('[[widgets]]\nname = "x"\ncommand = "count"', "invalid command 'count'"),
        ('[[widgets]]\nname = "x"\ncommand = "/x"\nplace = "moon"', "moon"),
    ],
)
def test_keys_and_widgets_are_checked_with_the_manifest(tmp_path: Path, said: str, why: str) -> None:
    """Before any of its code runs."""
    written(tmp_path)
    (tmp_path / "pack" / "extension.toml").write_text(f'name = "pack"\n{said}\n')
    with pytest.raises(ConfigError, match=why):
        read_manifest(tmp_path / "pack")
