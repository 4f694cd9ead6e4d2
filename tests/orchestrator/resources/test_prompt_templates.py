"""Templates of prompts: where they are from, how they are filled in, and what an agent is told by one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from orch import Config, ConfigError, PromptConfig
from orch.resources.prompt_templates import Files, InMemory, Package, PromptTemplate, TemplateCatalog
from orchestrator.root_double import opened
from virtual_clock import virtual


def template(text: str) -> PromptTemplate:
    """Return a template with that text."""
    return PromptTemplate("t", text, "a test")


class TestFilledIn:
    """A text with variables, and values for them."""

    def test_each_value_is_put_in_once_and_as_it_is(self) -> None:
        """Neither braces nor backslashes in a value mean anything; blanks around a name are no matter."""
        values = {"a": r"\1 {{b}} \g<0>", "b": 3}
        assert template("{{a}}, {{ b }}, {{a}}").render(values) == r"\1 {{b}} \g<0>, 3, \1 {{b}} \g<0>"

    def test_variables_in_the_order_of_the_text(self) -> None:
        """Each once."""
        assert template("{{b}} {{a}} {{b}}").variables == ("b", "a")

    def test_braces_that_are_meant(self) -> None:
        """Behind a backslash they are braces; closing ones need none."""
        assert template(r"\{{a}} and }}").render({}) == "{{a}} and }}"

    def test_a_value_that_is_missing_is_named(self) -> None:
        """With the template, where it is from, and the three ways to give it."""
        with pytest.raises(ConfigError, match=r"'t' \(a test\) needs b, c: pass vars=.*--var b=.*prompt\.vars\.b"):
            template("{{a}} {{b}} {{c}}").render({"a": 1})

    @pytest.mark.parametrize("text", ["one\n{{role!}}", "one\n{{", "one\n{{ }}", "one\n{{1}}"])
    def test_what_begins_no_variable_is_an_error_with_its_line(self, text: str) -> None:
        """Rather than a text that nobody meant."""
        with pytest.raises(ConfigError, match="line 2"):
            template(text).render({})


class TestProviders:
    """Templates from a program, from files, and from packages."""

    def test_files_of_a_folder(self, tmp_path: Path) -> None:
        """By their names without the suffix; what is no Markdown is none, and neither is what is not there."""
        (tmp_path / "b.md").write_bytes(b"\xef\xbb\xbfYou are b.\r\n\r\nYes.\n")
        (tmp_path / "a.md").write_text("You are a.")
        (tmp_path / "c.txt").write_text("x")
        assert [(each.name, each.text) for each in Files(tmp_path).templates()] == [
            ("a", "You are a."),
            ("b", "You are b.\n\nYes."),
        ]
        assert list(Files(tmp_path / "none").templates()) == []

    def test_a_file_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        """It would be in each request."""
        (tmp_path / "a.md").write_text("x" * 300_000)
        with pytest.raises(ConfigError, match="too large"):
            Files(tmp_path).templates()

    def test_a_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In a folder of it; a package that is not there is said to be missing."""
        (tmp_path / "packed_prompts" / "prompts").mkdir(parents=True)
        (tmp_path / "packed_prompts" / "__init__.py").write_text("")
        (tmp_path / "packed_prompts" / "prompts" / "pirate.md").write_text("You are {{who}}.")
        monkeypatch.syspath_prepend(str(tmp_path))
        [found] = Package("packed_prompts").templates()
        assert (found.name, found.text, found.source) == ("pirate", "You are {{who}}.", "packed_prompts:prompts")
        with pytest.raises(ConfigError, match=r"no_such_thing:prompts cannot be read"):
            Package("no_such_thing").templates()
        sys.modules.pop("packed_prompts", None)

    def test_configured_places_and_the_users_own(self, tmp_path: Path) -> None:
        """Folders, single files, and `prompts` beside the configuration; two of a name are an error that names both."""
        for folder in ("home/prompts", "mine"):
            (tmp_path / folder).mkdir(parents=True)
        (tmp_path / "home" / "prompts" / "one.md").write_text("1")
        (tmp_path / "mine" / "two.md").write_text("2")
        (tmp_path / "three.md").write_text("3")
        config = PromptConfig(templates=(str(tmp_path / "mine"), str(tmp_path / "three.md")))
        there = TemplateCatalog(config, tmp_path / "home")
        assert [each.name for each in there.all()] == ["one", "three", "two"]
        (tmp_path / "mine" / "one.md").write_text("another")
        with pytest.raises(ConfigError, match=r"two templates 'one'"):
            there.all()
        with pytest.raises(ConfigError, match="/no/where does not exist"):
            TemplateCatalog(PromptConfig(templates=("/no/where",)), tmp_path).all()

    def test_a_provider_is_taken_whole_or_not(self, tmp_path: Path) -> None:
        """With one bad template none of it is there; neither with a name that is taken."""
        there = TemplateCatalog(PromptConfig(), tmp_path)
        assert there.add(InMemory({"a": "A"})) == ("a",)
        for bad, why in (
            ({"b": "B", "c": "{{"}, "invalid variable"),
            ({"b": "B", "a": "A"}, "already"),
            ({"b c": "B"}, "invalid template name"),
        ):
            with pytest.raises(ConfigError, match=why):
                there.add(InMemory(bad))
        assert [each.name for each in there.all()] == ["a"]


class TestAsked:
    """What an agent is told by a template."""

    def there(self, home: Path, **config: Any) -> TemplateCatalog:
        """Return templates with one that greets."""
        found = TemplateCatalog(PromptConfig(**config), home)
        found.add(InMemory({"greeter": "You greet {{whom}} in {{language}}."}))
        return found

    def test_values_that_are_given_beat_those_that_are_configured(self, tmp_path: Path) -> None:
        """And what is configured for other templates is no matter."""
        there = self.there(tmp_path, vars={"whom": "all", "language": "Latin", "other": "x"})
        spec = there.asked("greeter", {"whom": "zebras"})
        assert (spec.identity, spec.source) == ("You greet zebras in Latin.", "template greeter (this program)")

    def test_what_cannot_be_had_says_why(self, tmp_path: Path) -> None:
        """No such template, with those there are; a variable that it has not; values for no template."""
        there = self.there(tmp_path)
        for name, given, why in (
            ("grater", {}, "unknown template 'grater'; available: greeter"),
            ("greeter", {"who": "x"}, "no variable 'who'; it has whom, language"),
            (None, {"whom": "x"}, "no template is selected"),
            ("./none.md", {}, "template file ./none.md"),
        ):
            with pytest.raises(ConfigError, match=why):
                there.asked(name, given)

    def test_without_a_template_nothing_is_said(self, tmp_path: Path) -> None:
        """Unless one is configured."""
        assert self.there(tmp_path).asked(None, None).identity is None
        config = {"template": "greeter", "vars": {"whom": "all", "language": "Latin"}}
        assert self.there(tmp_path, **config).asked(None, None).identity == "You greet all in Latin."

    @virtual
    async def test_an_agent_is_who_its_template_says(self, tmp_path: Path) -> None:
        """In place of who agents are; what its tools are is said all the same, and the part says where it is from."""
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
        """One method is all there is to it; anything else is refused."""

        class Own:
            def templates(self) -> Iterable[PromptTemplate]:
                return [PromptTemplate("own", "You are own.", "mine")]

        async with opened(tmp_path) as world:
            assert world.register_prompt_template(Own()) == ("own",)
            with pytest.raises(ConfigError, match="needs a text"):
                world.register_prompt_template("bare")
            with pytest.raises(ConfigError, match="got 3"):
                world.register_prompt_template(3)  # type: ignore[arg-type]
