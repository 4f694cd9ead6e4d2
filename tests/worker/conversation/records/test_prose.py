"""Prose: sentences, requests of the user, and figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_worker.conversation.records.prose import (
    cut_at_sentence,
    figures_in,
    is_request,
    last_sentences,
    request_in,
)


@pytest.mark.parametrize(
    "text",
    [
        *("", "continue", "Continue.", "ok, go on", "yes please", "ok", "[Request interrupted by user]", "keep going!"),
        *(
            "[Request interrupted by user for tool use]",
            "weiter",
            "go ahead",
            "[Request interrupted by user]\ncontinue",
        ),
        (
            "<task-notification>\n<task-id>b7</task-id>\n<status>completed</status>\n</task-notification>\n"
            "Read the output file to retrieve the result: /tmp/b7.output"
        ),
        "<system-reminder>The todo list is empty.</system-reminder>",
        "<environment_context>\n<cwd>/srv</cwd>\n</environment_context>",
        "# AGENTS.md instructions for /srv\n\n<INSTRUCTIONS>\nWrite tests.\n</INSTRUCTIONS>",
        "<local-command-stdout>done</local-command-stdout>",
        "This session is being continued from a previous conversation that ran out of context. Summary: fix pumps",
    ],
)
def test_text_asks_for_nothing(text: str) -> None:
    """Interruptions, notifications and encouragement are no requests."""
    assert not is_request(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Fix the pump", "Fix the pump"),
        ("continue with the second pump", "continue with the second pump"),
        ("[Request interrupted by user]no, use Celsius", "no, use Celsius"),
        ("<user_instructions>x</user_instructions>\n<environment_context>y</environment_context>\nRun it", "Run it"),
        ("What does <environment_context> mean?", "What does <environment_context> mean?"),
        ("# AGENTS.md instructions\nMake them shorter", "# AGENTS.md instructions\nMake them shorter"),
        ('<file name="a"> needs a mode', '<file name="a"> needs a mode'),
        ("<system-reminder>x</system-reminder>\nRun it again on the server", "Run it again on the server"),
        ("<command-name>/review</command-name>\n<command-args>all files</command-args>", "/review all files"),
    ],
)
def test_words_of_the_user_are_separated_from_notices(text: str, words: str) -> None:
    """The words after an interruption and the name of a command stay."""
    assert is_request(text)
    assert request_in(text) == words


def test_text_is_cut_at_the_end_of_a_sentence_with_a_mark() -> None:
    """A text that fits stays whole. List numbers and version numbers do not end a sentence."""
    text = "Done. It uses version 1.2 of the driver. The rest follows tomorrow."
    assert cut_at_sentence(text, 100) == text
    assert cut_at_sentence(text, 50) == "Done. It uses version 1.2 of the driver. […]"
    assert cut_at_sentence("Plan:\n1. first step is long\n2. second", 32) == "Plan:\n1. first step is long […]"
    assert cut_at_sentence("word " * 40, 40, "[more]") == "word word word word word word [more]"


def test_last_sentences_leave_out_code() -> None:
    """The last sentences state what comes next."""
    text = "It fails.\n```py\nx = 1.\n```\nThe limit is wrong. Let me fix limits.py next:"
    assert last_sentences(text, 2, 80) == "The limit is wrong. Let me fix limits.py next:"
    assert last_sentences("No. 1 is fine", 2, 80) == "No. 1 is fine"


def test_figures_keep_their_words() -> None:
    """A bare number, and the number of a line, tell nothing."""
    text = "Startup takes 12.7 ms now, down from 80 ms. See line 4711; 1,024 pumps answer. 999"
    assert list(figures_in(text)) == ["Startup takes 12.7 ms now", "down from 80 ms", "1,024 pumps answer"]


@given(st.text(max_size=80), st.integers(-5, 100))
def test_cut_text_has_at_most_the_given_length(text: str, chars: int) -> None:
    """The mark is part of the length."""
    assert len(cut_at_sentence(text, chars)) <= max(chars, 0) or len(text.strip()) <= chars
