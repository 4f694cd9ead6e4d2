"""Prompt templates: their providers, their variables, and the identity that they give an agent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from orch import Config, ConfigError, EntryNotFoundError, PromptConfig
from orch.resources.prompt_templates import Files, InMemory, Package, PromptTemplate, TemplateCatalog
from orchestrator.root_double import opened
from virtual_clock import virtual


def template(text: str) -> PromptTemplate:
    """Return a template with the text `text`."""
    return PromptTemplate("t", text, "a test")


def in_memory(**texts: str) -> InMemory:
    """Return a provider of templates with these names and texts."""
    return InMemory(*(PromptTemplate(name, text) for name, text in texts.items()))


class TestFilledIn:
    """Variables of a text, and the insertion of values."""

    def test_values_are_inserted_once_and_literally(self) -> None:
        """Braces and backslashes in a value have no meaning."""
        values = {"a": r"\1 {{b}} \g<0>", "b": 3}
        assert template("{{a}}, {{ b }}, {{a}}").render(values) == r"\1 {{b}} \g<0>, 3, \1 {{b}} \g<0>"

    def test_variables_are_listed_in_text_order(self) -> None:
        """A variable that occurs twice is listed once."""
        assert template("{{b}} {{a}} {{b}}").variables == ("b", "a")

    def test_escaped_braces_are_literal(self) -> None:
        """A backslash escapes opening braces. Closing braces need no backslash."""
        assert template(r"\{{a}} and }}").render({}) == "{{a}} and }}"

    def test_missing_value_names_the_variable(self) -> None:
        """The error has the template, its source, and the three ways to set the value."""
        with pytest.raises(ConfigError, match=r"'t' \(a test\) needs b, c: pass vars=.*--var b=.*prompt\.vars\.b"):
            template("{{a}} {{b}} {{c}}").render({"a": 1})

    @pytest.mark.parametrize("text", ["one\n{{role!}}", "one\n{{", "one\n{{ }}", "one\n{{1}}"])
    def test_malformed_variable_is_an_error_with_its_line(self, text: str) -> None:
        with pytest.raises(ConfigError, match="line 2"):
            template(text).render({})


class TestProviders:
    """Templates of a program, of files and of packages."""

    def test_templates_are_the_markdown_files_of_a_folder(self, tmp_path: Path) -> None:
        """A template is named after its file without the suffix. Other files, and a missing folder, are ignored."""
        (tmp_path / "b.md").write_bytes(b"\xef\xbb\xbfYou are b.\r\n\r\nYes.\n")
        (tmp_path / "a.md").write_text("You are a.")
        (tmp_path / "c.txt").write_text("x")
        assert [(each.name, each.text) for each in Files(tmp_path).templates()] == [
            ("a", "You are a."),
            ("b", "You are b.\n\nYes."),
        ]
        assert list(Files(tmp_path / "none").templates()) == []

    def test_oversized_template_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.md").write_text("x" * 300_000)
        with pytest.raises(ConfigError, match="too large"):
            Files(tmp_path).templates()

    def test_templates_of_a_package_are_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Templates are read from the folder `prompts` of the package. A missing package is an error."""
        (tmp_path / "packed_prompts" / "prompts").mkdir(parents=True)
        (tmp_path / "packed_prompts" / "__init__.py").write_text("")
        (tmp_path / "packed_prompts" / "prompts" / "pirate.md").write_text("You are {{who}}.")
        monkeypatch.syspath_prepend(str(tmp_path))
        [found] = Package("packed_prompts").templates()
        assert (found.name, found.text, found.source) == ("pirate", "You are {{who}}.", "packed_prompts:prompts")
        with pytest.raises(ConfigError, match=r"no_such_thing:prompts cannot be read"):
            Package("no_such_thing").templates()
        sys.modules.pop("packed_prompts", None)

    def test_templates_from_configuration_and_home(self, tmp_path: Path) -> None:
        """A configured path is a folder or a file. Duplicate names and missing paths are errors."""
        for folder in ("home/prompts", "mine"):
            (tmp_path / folder).mkdir(parents=True)
        (tmp_path / "home" / "prompts" / "one.md").write_text("1")
        (tmp_path / "mine" / "two.md").write_text("2")
        (tmp_path / "three.md").write_text("3")
        config = PromptConfig(templates=(str(tmp_path / "mine"), str(tmp_path / "three.md")))
        there = TemplateCatalog(config, tmp_path / "home")
        assert [each.name for each in there.all()] == ["one", "three", "two"]
        (tmp_path / "mine" / "one.md").write_text("another")
        with pytest.raises(ConfigError, match=r"two templates are named 'one'"):
            there.all()
        with pytest.raises(ConfigError, match="/no/where does not exist"):
            TemplateCatalog(PromptConfig(templates=("/no/where",)), tmp_path).all()

    def test_provider_with_an_invalid_template_is_refused_whole(self, tmp_path: Path) -> None:
        """An invalid text, a name that is in use, and an invalid name are errors, and no template is added."""
        there = TemplateCatalog(PromptConfig(), tmp_path)
        assert there.add(in_memory(a="A")) == ("a",)
        for bad, why in (
            ({"b": "B", "c": "{{"}, "invalid variable"),
            ({"b": "B", "a": "A"}, "already"),
            ({"b c": "B"}, "invalid template name"),
        ):
            with pytest.raises(ConfigError, match=why):
                there.add(in_memory(**bad))
        assert [each.name for each in there.all()] == ["a"]


class TestAsked:
    """The prompt of an agent with a template."""

    def there(self, home: Path, **config: Any) -> TemplateCatalog:
        """Return a catalog with one template that has two variables."""
        found = TemplateCatalog(PromptConfig(**config), home)
        found.add(in_memory(greeter="You greet {{whom}} in {{language}}."))
        return found

    def test_given_values_override_configured_ones(self, tmp_path: Path) -> None:
        """Configured values for other variables have no effect."""
        there = self.there(tmp_path, vars={"whom": "all", "language": "Latin", "other": "x"})
        spec = there.prompt_spec("greeter", {"whom": "zebras"})
        assert (spec.identity, spec.source) == ("You greet zebras in Latin.", "template greeter (this program)")

    def test_unknown_templates_and_variables_are_errors(self, tmp_path: Path) -> None:
        """Values without a template are an error, too."""
        there = self.there(tmp_path)
        for name, given, error, why in (
            ("grater", {}, EntryNotFoundError, "unknown template 'grater'; available: greeter"),
            ("greeter", {"who": "x"}, ConfigError, "no variable 'who'; it has whom, language"),
            (None, {"whom": "x"}, ConfigError, "no template is selected"),
            ("./none.md", {}, EntryNotFoundError, "template file ./none.md"),
        ):
            with pytest.raises(error, match=why):
                there.prompt_spec(name, given)

    def test_unknown_template_of_the_configuration_is_a_configuration_error(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"^prompt.template: unknown template 'grater'"):
            self.there(tmp_path, template="grater").prompt_spec(None, None)

    def test_no_template_is_used_by_default(self, tmp_path: Path) -> None:
        """A template of the configuration is used."""
        assert self.there(tmp_path).prompt_spec(None, None).identity is None
        config = {"template": "greeter", "vars": {"whom": "all", "language": "Latin"}}
        assert self.there(tmp_path, **config).prompt_spec(None, None).identity == "You greet all in Latin."

    @virtual
    async def test_identity_template_replaces_the_default(self, tmp_path: Path) -> None:
        """The tools follow the identity, and the part of the prompt names its source."""
        config = Config(prompt=PromptConfig(vars={"language": "Latin"}))
        async with opened(tmp_path, config=config) as world:
            assert world.register_prompt_template("greeter", "You greet {{whom}} in {{language}}.") == ("greeter",)
            assert [each.name for each in world.prompt_templates.list()] == ["greeter"]
            agent = await world.scripted("ave", tools=[], prompt_template="greeter", vars={"whom": "zebras"})
            shown = await agent.prompt_parts()
            await asyncio.sleep(0)
            first = shown.parts[0]
            assert shown.render("stable").startswith("You greet zebras in Latin.\n\nYou have no tools.")
            assert (first.name, first.owner, first.source) == ("identity", "user", "template greeter (this program)")
            with pytest.raises(ConfigError, match="needs whom"):
                await world.scripted("x", prompt_template="greeter")

    @virtual
    async def test_any_object_with_templates_is_a_provider(self, tmp_path: Path) -> None:
        """A provider needs only the method `templates`. Other objects are refused."""

        class Own:
            def templates(self) -> Iterable[PromptTemplate]:
                return [PromptTemplate("own", "You are own.", "mine")]

        async with opened(tmp_path) as world:
            assert world.register_prompt_template(Own()) == ("own",)
            with pytest.raises(ConfigError, match="needs a text"):
                world.register_prompt_template("bare")
            with pytest.raises(ConfigError, match="got 3"):
                world.register_prompt_template(3)  # type: ignore[arg-type]
