"""The README's numbers and pictures are what the command that makes them makes."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
import readme

from xlperf.base.resources import workbook


@pytest.mark.slow
def test_answers_below_the_commands_are_what_the_commands_print() -> None:
    text = readme.README.read_text(encoding="utf-8")
    asked = readme.commands(text)
    assert set(asked) == {"serve", "train", "chip", "fleet"}
    answers = {kind: readme.answer(kind, words) for kind, words in asked.items()}
    assert readme.with_answers(text, answers) == text
    assert all(len(re.findall(r"[\d,]*\.?\d+", words)) > 4 for words in answers.values())


@pytest.mark.usefixtures("soffice")
@pytest.mark.slow
def test_pictures_are_the_pages_of_the_workbook() -> None:
    """Fonts of another machine move letters, not fields: eighths of a picture have the same mean color."""
    name = "compare"
    page = readme.printed(workbook(), readme.PICTURES[name])[-1]
    height, width, _ = page.shape
    shipped = (readme.ROOT / "workbooks" / f"{name}.png").read_bytes()
    wide, high = struct.unpack(">II", shipped[16:24])
    assert readme.png(page)[:16] == shipped[:16]
    assert (width, height) == pytest.approx((wide, high), rel=0.05)
    blocks = np.array([[part.mean() for part in np.array_split(band, 8, axis=1)] for band in np.array_split(page, 8)])
    assert blocks.min() < 235.0 and blocks.max() > 240.0, "a form, tiles and a chart on white"
