"""Words of docstrings by room: four habits of grammar per 1,000 words, and lines that use the name ``found``.

A sentence has a subject that acts, the noun comes before its definition, and "if" and "when" state conditions. The
limits are twice the rates of the worst of six other packages. A room that does not meet them yet has an allowance in
``ALLOWED``: lower it when the room gets better, and remove it when the room meets the limits.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from places import ROOT

HABITS = {
    "those, that of": r"\b(those|that of)\b",
    "what": r"\bwhat\b",
    "where": r"\bwhere\b",
    "told, said, stands, kept, taken": r"\b(told|untold|said|says|stands?|stood|kept|taken|dealt|meets?)\b",
}
LIMITS = (1.4, 2.6, 3.8, 1.0, 25)
"""Uses of each habit per 1,000 words, and lines with ``found``."""
ALLOWED: dict[str, tuple[float, ...]] = {"engine": (1.4, 2.6, 3.8, 1, 50), "explore": (1.4, 2.6, 3.8, 1, 56)}
ROOMS = sorted(path.name for path in (ROOT / "xlperf").iterdir() if (path / "__init__.py").is_file())


def prose(text: str) -> str:
    """Docstrings of a module without lists of parameters, references, examples and formulas."""
    parts = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (words := ast.get_docstring(node)):
            words = re.split(r"Parameters\n|Examples\n|References\n|Args:", words)[0]
            parts.append(re.sub(r"\.\. math::.*?\n\n", "", re.sub(r">>>.*", "", words), flags=re.DOTALL))
    return " ".join(parts)


def rates(folder: Path) -> tuple[float, ...]:
    """Uses of each habit per 1,000 words of the docstrings of a folder, and its lines with ``found``."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    words = " ".join(map(prose, texts))
    number = max(len(words.split()), 1)
    uses = [1000.0 * len(re.findall(habit, words, re.IGNORECASE)) / number for habit in HABITS.values()]
    return (*uses, sum("found" in line for text in texts for line in text.splitlines()))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_keeps_to_the_grammar(room: str) -> None:
    allowed = [max(pair) for pair in zip(LIMITS, ALLOWED.get(room, LIMITS), strict=True)]
    measured = dict(zip((*HABITS, "lines with found"), rates(ROOT / "xlperf" / room), strict=True))
    above = {
        name: (round(rate, 1), limit)
        for (name, rate), limit in zip(measured.items(), allowed, strict=True)
        if rate > limit
    }
    assert not above, f"xlperf/{room} uses these more often than allowed: {above}"


def test_prose_is_read_without_parameters_examples_and_formulas() -> None:
    text = '''
def half(x):
    """Half of x, where told.

    .. math:: what

    Parameters
    ----------
    x : numeric
        Those that stand.
    """
'''
    assert prose(text).split() == ["Half", "of", "x,", "where", "told."]
