"""Built-in hooks that remind an agent: to say what it does, and to check what it changed."""

from __future__ import annotations

from typing import Any

from hook_events import Ctx, call, responded, returned
from orch_protocol.hooks.options import CompletionChecklist, HookOptions, NarrationGuard
from orch_worker.hooks.loader import configured_hooks


class TestNarrationGuard:
    """An agent that works without a word."""

    def heard(self, *steps: tuple[str, list[str]], after: int = 3) -> list[str]:
        """Return what an agent is told in a turn of these responses: text and calls."""
        [hook] = configured_hooks(["narration_guard"], HookOptions(narration_guard=NarrationGuard(after)))
        ctx = Ctx()
        for text, calls in steps:
            assert call(hook, responded(text, calls), ctx) is None
        return ctx.said

    def test_it_is_told_after_so_many_silent_steps_and_again_after_as_many(self) -> None:
        """Three responses with calls and no text bring one reminder, six bring two."""
        silent = ("", ["read_file"])
        assert self.heard(silent, silent) == []
        assert len(self.heard(silent, silent, silent, silent, silent)) == 1
        assert len(self.heard(*[silent] * 6)) == 2
        assert "3 rounds of tool calls" in self.heard(*[silent] * 3)[0]

    def test_a_word_begins_the_count_anew(self) -> None:
        """Text beside the calls counts as telling; blanks do not."""
        silent, telling, blank = ("", ["read_file"]), ("I look at it.", ["read_file"]), (" \n", ["read_file"])
        assert self.heard(silent, silent, telling, silent, silent) == []
        assert len(self.heard(silent, silent, blank)) == 1

    def test_an_answer_is_not_silence(self) -> None:
        """A response without calls, empty as it may be, ends the row."""
        assert self.heard(("", ["a"]), ("", []), ("", ["a"]), after=2) == []


class Worker:
    """An agent that works under the checklist, in one turn."""

    def __init__(self, **options: Any) -> None:
        given = HookOptions(completion_checklist=CompletionChecklist(**options))
        [self.hook] = configured_hooks(["completion_checklist"], given)
        self.ctx = Ctx()

    def writes(self, *files: str) -> None:
        """Change files."""
        assert call(self.hook, returned("write_file", files_changed=files), self.ctx) is None

    def runs(self, name: str = "bash", text: str = "", input: dict[str, Any] | None = None, **fields: Any) -> None:
        """Run something."""
        assert call(self.hook, returned(name, input, text=text, **fields), self.ctx) is None

    def stops(self) -> str:
        """Answer without a call; return what it is told then, "" for nothing."""
        before = len(self.ctx.said)
        assert call(self.hook, responded("It is done."), self.ctx) is None
        return "".join(self.ctx.said[before:])


class TestCompletionChecklist:
    """An agent that stops after changing files."""

    def test_changes_that_nothing_was_run_after_are_asked_about(self) -> None:
        """It is told which files, when it would stop and not while it goes on."""
        agent = Worker()
        agent.writes("pump.py", "valve.py")
        call(agent.hook, responded("Next,", ["read_file"]), agent.ctx)
        assert agent.ctx.said == []
        said = agent.stops()
        assert "you changed pump.py, valve.py, and have run nothing since" in said

    def test_a_run_that_succeeded_is_enough(self) -> None:
        """Whatever ran well after the last change answers the question; a change after it asks anew."""
        agent = Worker()
        agent.writes("pump.py")
        agent.runs("run_python_script")
        assert agent.stops() == ""
        agent.writes("pump.py")
        assert "pump.py" in agent.stops()

    def test_a_run_that_failed_is_told_of(self) -> None:
        """A failure after a change is named; it does not count as a check, and a success after it does."""
        agent = Worker()
        agent.writes("pump.py")
        agent.runs(is_error=True)
        assert "what you ran last (bash) failed" in agent.stops()
        agent.writes("pump.py")
        agent.runs()
        assert agent.stops() == ""

    def test_it_may_stop_after_so_many_reminders(self) -> None:
        """It is asked as often as is configured, no more."""
        agent = Worker(reminders=1)
        agent.writes("pump.py")
        assert agent.stops()
        assert agent.stops() == ""

    def test_a_job_in_the_background_counts_when_it_has_ended(self) -> None:
        """Starting a job, or one that still runs, says nothing yet; its end does."""
        agent = Worker(reminders=9)
        agent.writes("pump.py")
        agent.runs(input={"background": True}, text="Started bg1.")
        agent.runs("bg_status", "[bg1 running for 3 s; bytes 0 to 0 of 0]")
        assert "have run nothing since" in agent.stops()
        agent.runs("bg_status", "out\n[bg1 ended with exit status 1; bytes 0 to 4 of 4]")
        assert "(bg_status) failed" in agent.stops()
        agent.runs("bg_status", "out\n[bg1 ended with exit status 0; bytes 0 to 4 of 4]")
        assert agent.stops() == ""

    def test_what_did_not_run_is_no_check(self) -> None:
        """A call that was denied says nothing of the change, nor do tools that only look."""
        agent = Worker()
        agent.writes("pump.py")
        agent.runs(ran=False, is_error=True)
        agent.runs("grep_files")
        assert "have run nothing since" in agent.stops()

    def test_texts_need_no_check_unless_configured(self) -> None:
        """Files that match `ignore` are not asked about."""
        agent = Worker()
        agent.writes("NOTES.md", "docs/a.rst")
        assert agent.stops() == ""
        strict = Worker(ignore=())
        strict.writes("NOTES.md")
        assert "NOTES.md" in strict.stops()

    def test_many_files_are_counted(self) -> None:
        """Five are named, the others are a number."""
        agent = Worker()
        agent.writes(*[f"f{number}.py" for number in range(9)])
        assert "f4.py and 4 more" in agent.stops()
