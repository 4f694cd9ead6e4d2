"""Parts of a prompt: patches by hooks, and the token limit of each tier."""

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
    """Return a part with a default text."""
    return PromptPart(name, text or f"This is {name}.", tier, "here", owner)


PARTS = (part("identity"), part("rule", tier="context", owner="project"), part("tasks", tier="volatile"))


def names(parts: tuple[PromptPart, ...]) -> list[str]:
    return [each.name for each in parts]


def test_prompt_part_has_size_and_hash_of_its_text() -> None:
    """Size and hash depend only on the part's text."""
    one, other = part("a", "same"), part("b", "same", "volatile")
    assert (one.size, one.hash) == (4, other.hash)
    assert len(one.hash) == 12
    assert one.hash != part("a", "else").hash


def test_live_subagents_stay_the_last_part() -> None:
    """Parts added to the volatile tier precede the live-subagents block."""
    parts = insert_parts(
        [part("tasks", tier="volatile"), part(LIVE, tier="volatile")], [part("late", tier="volatile"), part("x")]
    )
    assert names(parts) == ["x", "tasks", "late", LIVE]


def test_empty_parts_add_no_blank_line() -> None:
    """Empty parts are left out of the text."""
    assert render_parts([part("a", "a"), PromptPart("b", ""), part("c", "c")]) == "a\n\nc"


class TestPatches:
    """Patches of prompt parts by hooks."""

    @pytest.mark.parametrize(
        ("patch", "recorded", "why"),
        [
            (PromptPatch(add=(part("identity", "other"),)), False, "already"),
            (PromptPatch(add=(part("identity", "This is identity.", "volatile"),)), False, "already"),
            (PromptPatch(add=(part('x">', tier="stable"),)), False, "invalid part name"),
            (PromptPatch(replace=(part("nobody"),)), False, "cannot replace part 'nobody'"),
            (PromptPatch(replace=(part("rule", "other", "context"),)), True, "recorded with the first query"),
            (PromptPatch(add=(part("more", tier="context"),)), True, "recorded with the first query"),
            (PromptPatch(drop=("rule",)), True, "recorded with the first query"),
        ],
    )
    def test_invalid_part_patches_are_refused_with_a_reason(self, patch: PromptPatch, recorded: bool, why: str) -> None:
        """Adding an existing part, replacing a missing one and changing a recorded one raise PromptPartError."""
        with pytest.raises(PromptPartError, match=why):
            apply_prompt_patch(PARTS, patch, "h", recorded=recorded)

    def test_part_patch_without_effect_is_no_change(self) -> None:
        """Adding the same part or dropping a missing one on each turn is accepted."""
        patch = PromptPatch(add=(part("rule", tier="context"),), drop=("nobody",))
        assert apply_prompt_patch(PARTS, patch, "h", recorded=True) == PARTS

    def test_unrecorded_parts_can_be_replaced_dropped_and_added(self) -> None:
        """Changed parts belong to the hook that changed them."""
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
    """A tier above its limit: required parts stay, and the last ones are dropped with a notice."""

    def fit(self, *parts: PromptPart, limit: int = 100) -> tuple[tuple[PromptPart, ...], tuple[str, ...]]:
        """Return the volatile `parts` that fit into `limit` tokens, and the notices."""
        return fit_parts(parts, "volatile", PromptRules(volatile_tokens=limit), TokenEstimator())

    def test_parts_without_a_token_limit_are_kept(self) -> None:
        """Without a token limit, parts of any size are kept."""
        parts = (part("a", LINE * 1000, "volatile"),)
        assert fit_parts(parts, "volatile", PromptRules(), TokenEstimator()) == (parts, ())

    def test_parts_within_the_limit_are_unchanged(self) -> None:
        """The limit itself is allowed."""
        parts = (part("a", "x" * 200, "volatile"), part("b", "x" * 200, "volatile"))
        assert self.fit(*parts) == (parts, ())

    def test_parts_added_by_hooks_are_dropped_first(self) -> None:
        """The text and the notices contain the names of the dropped parts."""
        parts = (
            part("a", "x" * 160, "volatile"),
            part("h1", "x" * 160, "volatile", owner="hook h"),
            part("b", "x" * 180, "volatile"),
            part("h2", "x" * 160, "volatile", owner="hook h"),
        )
        kept, notes = self.fit(*parts)
        assert names(kept) == ["a", "b", "left_out"]
        assert kept[-1].text == "[Left out for lack of space: h1, h2]"
        assert [note.split()[0] for note in notes] == ["h1", "h2"]
        assert "volatile_tokens = 100" in notes[0]

    def test_part_that_fits_partly_is_cut_at_a_line(self) -> None:
        """The last line says that the part is cut."""
        kept, notes = self.fit(part("a", LINE * 100, "volatile"))
        lines = kept[0].text.split("\n")
        assert set(lines[:-1]) == {LINE.strip()}
        assert lines[-1].startswith("[a is cut: ")
        assert TokenEstimator().text(render_parts(kept)) <= 100
        assert notes[0].startswith("a is cut")

    def test_required_parts_are_never_dropped(self) -> None:
        """Plan mode, removed tools and live subagents stay even above the limit."""
        parts = tuple(part(name, "x" * 400, "volatile") for name in ("tools_taken", "plan_mode", "tasks", LIVE))
        kept, _ = self.fit(*parts)
        assert names(kept) == ["tools_taken", "plan_mode", "left_out", LIVE]

    def test_token_limits_apply_per_tier(self) -> None:
        """The limit of another tier has no effect."""
        parts = (part("a", LINE * 100), part("b", LINE * 100, "volatile"))
        kept, notes = fit_parts(parts, "stable", PromptRules(volatile_tokens=50), TokenEstimator())
        assert (kept, notes) == (of_tier(parts, "stable"), ())


class TestContextAsText:
    """The context before the first question is one text, which can be split into its parts again."""

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
    def test_context_parts_round_trip_as_text(self, more: Any) -> None:
        """Names, texts and owners are preserved, even for text that looks like a part header."""
        parts = self.parts(*more, one="first\n\nthree.md:\n\nsecond", two="x")
        again = context_parts(context_text(parts), ["one.md", "absent.md", "two.md"])
        assert [(each.name, each.text, each.owner) for each in again] == [
            (each.name, each.text, each.owner) for each in parts
        ]

    def test_hook_text_cannot_close_its_part(self) -> None:
        """An end marker inside the text is escaped."""
        text = context_text(self.parts(part("h", "a</context>\nb", "context", "hook h")))
        assert text.count("</context>") == 1
        assert text.endswith("\n</context>")

    def test_hook_parts_follow_the_project_text_with_their_owner(self) -> None:
        """Each hook part has a header with its owner."""
        text = context_text((part("h", "words", "context", "hook h"),))
        assert text == '<context name="h" of="hook h">\nwords\n</context>'
