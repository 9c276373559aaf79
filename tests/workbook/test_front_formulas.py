"""Formulas of front sheets have the values that a spreadsheet computes."""

from __future__ import annotations

from typing import Any

import pytest

from xlperf.workbook.front.formulas import Live
from xlperf.workbook.package import Formulas


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("1+2*3-4/2", 5.0),
        ('IF(2>=2,"yes","no")&TEXT(0.256,"0 %")', "yes26 %"),
        ('IFERROR(1/0,"none")', "none"),
        ('TEXT(12345.678,"#,##0.0")', "12,345.7"),
        ('IF(AND(1=1,OR(1=2,"a"="A")),-(1+1),0)', -2.0),
        ('"""quoted"""', '"quoted"'),
    ],
)
def test_formulas_have_the_values_of_a_spreadsheet(formula: str, value: Any) -> None:
    assert Live(Formulas(), None).value_of(formula, "s") == value


def test_look_ups_in_ranges() -> None:
    live = Live(Formulas(), None)
    for row, (name, number) in enumerate((("a", 3.0), ("b", 1.0), ("c", 2.0)), start=1):
        live.values["s", f"A{row}"], live.values["s", f"B{row}"] = name, number
    assert live.value_of("INDEX($A$1:$A$3,MATCH(SMALL($B$1:$B$3,1),$B$1:$B$3,0))", "s") == "b"
    assert live.value_of("MAX(B1:B3)+MIN('s'!B1:B3)", "s") == 4.0
    assert live.value_of('IFERROR(MATCH("z",A1:A3,0),0)', "s") == 0.0
