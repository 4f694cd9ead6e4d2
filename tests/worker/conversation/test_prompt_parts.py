"""Parts of a prompt: what hooks make of them, and how each tier is brought within its bounds."""

from __future__ import annotations

from typing import Any

import pytest

from orch_protocol.agent.project import ContextConfig, ContextFile, ProjectFolder
from orch_protocol.core.prompts import PromptPart, PromptRules, Tier
from orch_protocol.hooks.patches import PromptPatch
from orch_worker.conversation.prompt_parts import (
    LIVE,
    PromptPartError,
    apply_prompt_patch,
    fit_parts,
    insert_parts,
    of_tier,
    render_parts,
)
from orch_worker.conversation.tokens import TokenEstimator
from orch_worker.prompt.project import ProjectDescription, context_parts, context_text, project_parts

LINE = "a line of sixteen\n"


def part(name: str, text: str = "", tier: Tier = "stable", owner: str = "orch") -> PromptPart:
    """Return a part."""
    return PromptPart(name, text or f"This is {name}.", tier, "here", owner)


PARTS = (part("identity"), part("rule", tier="context", owner="project"), part("tasks", tier="volatile"))


def names(parts: tuple[PromptPart, ...]) -> list[str]:
    """Return the names of `parts`, in order."""
    return [each.name for each in parts]


def test_a_part_says_how_large_it_is_and_has_a_fingerprint() -> None:
    """Size and hash are those of its text, and of nothing else."""
    one, other = part("a", "same"), part("b", "same", "volatile")
    assert (one.size, one.hash) == (4, other.hash)
    assert len(one.hash) == 12
    assert one.hash != part("a", "else").hash


def test_who_is_live_stays_last() -> None:
    """Whatever is added to the volatile tier stands before the live subagents."""
    parts = insert_parts(
        [part("tasks", tier="volatile"), part(LIVE, tier="volatile")], [part("late", tier="volatile"), part("x")]
    )
    assert names(parts) == ["x", "tasks", "late", LIVE]


def test_parts_that_say_nothing_leave_no_gap() -> None:
    """An empty part is no empty line."""
    assert render_parts([part("a", "a"), PromptPart("b", ""), part("c", "c")]) == "a\n\nc"


class TestPatches:
    """What a hook may do to the parts."""

    @pytest.mark.parametrize(
        ("patch", "recorded", "why"),
        [
            (PromptPatch(add=(part("identity", "other"),)), False, "already"),
            (PromptPatch(add=(part("identity", "This is identity.", "volatile"),)), False, "already"),
            (PromptPatch(add=(part('x">', tier="stable"),)), False, "invalid part name"),
            (PromptPatch(replace=(part("nobody"),)), False, "cannot replace part 'nobody'"),
            (PromptPatch(replace=(part("rule", "other", "context"),)), True, "on record"),
            (PromptPatch(add=(part("more", tier="context"),)), True, "on record"),
            (PromptPatch(drop=("rule",)), True, "on record"),
        ],
    )
    def test_what_cannot_be_had_says_why(self, patch: PromptPatch, recorded: bool, why: str) -> None:
        """A part that is there, one that is not, a name that is none, and what is on record."""
        with pytest.raises(PromptPartError, match=why):
            apply_prompt_patch(PARTS, patch, "h", recorded=recorded)

    def test_what_is_there_as_it_is_wanted_is_no_change(self) -> None:
        """Who adds the same in each turn, or drops what is not there, is not mistaken, also once it is on record."""
        patch = PromptPatch(add=(part("rule", tier="context"),), drop=("nobody",))
        assert apply_prompt_patch(PARTS, patch, "h", recorded=True) == PARTS

    def test_before_it_is_on_record_everything_can_change(self) -> None:
        """Replaced in its place, dropped, and added at the end of its tier; what a hook did is the hook's."""
        patch = PromptPatch(
            replace=(part("identity", "Me."),), drop=("tasks",), add=(part("more", tier="context", owner="project"),)
        )
        parts = apply_prompt_patch(PARTS, patch, "h")
        assert [(each.name, each.tier, each.owner) for each in parts] == [
            ("identity", "stable", "hook h"),
            ("rule", "context", "project"),
            ("more", "context", "hook h"),
        ]


class TestBudget:
    """A tier that is too large: what is needed stays, the rest goes from the end, and that is said."""

    def fit(self, *parts: PromptPart, most: int = 100) -> tuple[tuple[PromptPart, ...], tuple[str, ...]]:
        """Return what of the volatile `parts` fits into `most` tokens."""
        return fit_parts(parts, "volatile", PromptRules(volatile_tokens=most), TokenEstimator())

    def test_without_a_bound_all_of_it_stays(self) -> None:
        """No bound is none, whatever the size."""
        parts = (part("a", LINE * 1000, "volatile"),)
        assert fit_parts(parts, "volatile", PromptRules(), TokenEstimator()) == (parts, ())

    def test_what_fits_is_not_touched(self) -> None:
        """Up to the last token."""
        parts = (part("a", "x" * 200, "volatile"), part("b", "x" * 200, "volatile"))
        assert self.fit(*parts) == (parts, ())

    def test_what_hooks_added_goes_first(self) -> None:
        """Wherever it stands; then the last of the others. Both is said in the text, and to people."""
        parts = (
            part("a", "x" * 160, "volatile"),
            part("h1", "x" * 160, "volatile", owner="hook h"),
            part("b", "x" * 180, "volatile"),
            part("h2", "x" * 160, "volatile", owner="hook h"),
        )
        kept, notes = self.fit(*parts)
        assert names(kept) == ["a", "b", "left_out"]
        assert kept[-1].text == "[Left out for want of room: h1, h2]"
        assert [note.split()[0] for note in notes] == ["h1", "h2"]
        assert "volatile_tokens = 100" in notes[0]

    def test_one_that_fits_in_part_is_cut_at_a_line(self) -> None:
        """Its beginning stays, with how much is missing."""
        kept, notes = self.fit(part("a", LINE * 100, "volatile"))
        lines = kept[0].text.split("\n")
        assert set(lines[:-1]) == {LINE.strip()}
        assert lines[-1].startswith("[a is cut: ")
        assert TokenEstimator().text(render_parts(kept)) <= 100
        assert notes[0].startswith("a is cut")

    def test_what_is_needed_is_never_left_out(self) -> None:
        """Plan mode, tools that were taken and who is live stay, though there is no room for them."""
        parts = tuple(part(name, "x" * 400, "volatile") for name in ("tools_taken", "plan_mode", "tasks", LIVE))
        kept, _ = self.fit(*parts)
        assert names(kept) == ["tools_taken", "plan_mode", "left_out", LIVE]

    def test_each_tier_has_its_own(self) -> None:
        """A bound of one tier says nothing of the others."""
        parts = (part("a", LINE * 100), part("b", LINE * 100, "volatile"))
        kept, notes = fit_parts(parts, "stable", PromptRules(volatile_tokens=50), TokenEstimator())
        assert (kept, notes) == (of_tier(parts, "stable"), ())


class TestContextAsText:
    """What stands before the first question is one text, and can be taken apart again."""

    def parts(self, *more: PromptPart, **pages: str) -> tuple[PromptPart, ...]:
        """Return the parts of a project with these context files, and `more`."""
        found = ProjectDescription(
            about=("a: b",),
            folders=(ProjectFolder("src", 3),),
            pages=tuple(ContextFile(f"{name}.md", text) for name, text in pages.items()),
        )
        return (*project_parts(found, "full", ContextConfig(), TokenEstimator()), *more)

    @pytest.mark.parametrize(
        "more", [(), (part("h", "of a hook", "context", "hook h"), part("i", "a\n\nb", "context", "hook i"))]
    )
    def test_and_back(self, more: Any) -> None:
        """Names, texts and owners come back as they were, also where a text looks like the beginning of a file."""
        parts = self.parts(*more, one="first\n\nthree.md:\n\nsecond", two="x")
        again = context_parts(context_text(parts), ["one.md", "absent.md", "two.md"])
        assert [(each.name, each.text, each.owner) for each in again] == [
            (each.name, each.text, each.owner) for each in parts
        ]

    def test_hooks_cannot_end_what_their_words_stand_in(self) -> None:
        """A mark of the end within a part is no end."""
        text = context_text(self.parts(part("h", "a</context>\nb", "context", "hook h")))
        assert text.count("</context>") == 1
        assert text.endswith("\n</context>")

    def test_other_words_are_not_the_projects(self) -> None:
        """What a hook adds stands behind the project's text, with whose it is."""
        text = context_text((part("h", "words", "context", "hook h"),))
        assert text == '<context name="h" of="hook h">\nwords\n</context>'
