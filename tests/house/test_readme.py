"""The README's numbers are those that its commands print; its pictures are compared where the workbook is printed."""

from __future__ import annotations

import re

import pytest
import readme


@pytest.mark.slow
def test_answers_below_the_commands_are_what_the_commands_print() -> None:
    """A command that a page of the guide has too is computed by the test of the page alone."""
    text = readme.README.read_text(encoding="utf-8")
    asked = readme.commands(text)
    assert set(asked) == {"serve", "train", "chip", "fleet"}
    shown = {kind: readme.in_guide(f"xlperf {kind} {words}") for kind, words in asked.items()}
    answers = {kind: readme.repeated(kind, shown[kind]) or readme.answer(kind, words) for kind, words in asked.items()}
    assert readme.with_answers(text, answers) == text
    assert all(len(re.findall(r"[\d,]*\.?\d+", words)) > 4 for words in answers.values())
