"""Formulas of front sheets have the values that a spreadsheet computes."""

from __future__ import annotations

from typing import Any

import pytest

from xlperf.workbook.front.formulas import Live, looked_up
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
    assert live.value_of('COUNT(A1:B3)+SUMIFS(B1:B3,A1:A3,"c")', "s") == 5.0


def test_a_note_has_the_value_of_the_sheet_unless_the_entry_is_stated() -> None:
    """Prices by the payment, failure rates by fleet and domain; words if the sheet has none."""
    live = Live(Formulas(), None)
    live.values |= {("s", "C1"): "auto", ("s", "C2"): "H100", ("s", "C3"): "rent", ("s", "C4"): "mine"}
    live.columns = {
        "prices[price]": ["A100", "H100"], "prices[[energy price (USD/kWh)]]": [0.05, None],
        "servers[accelerator]": ["H100"], "servers[[energy price (USD/kWh)]]": [0.03],
        "failures[fleet]": ["mine", "mine"], "failures[domain]": ["node", "rack"], "failures[[mtbf (h)]]": [9e3, 2e3],
    }  # fmt: skip
    entries = {"accelerator": "C2", "payment": "C3", "fleet": "C4"}

    def note(words: str) -> str:
        return str(live.value_of(looked_up(words, "C1", entries, live.columns), "s"))

    energy = "→ {prices.energy_price accelerator*1000:0} a MWh|as the sheets"
    assert note(energy) == "→ 83 a MWh"  # a blank cell has the default of its column
    live.values["s", "C3"] = "own"
    assert note(energy) == "→ 30 a MWh"
    domains = [note(f"→ {{failures.mtbf fleet {domain}:#,##0}}|none") for domain in ("rack", "switch")]
    assert domains == ["→ 2,000", "none"]
    live.values["s", "C1"] = 5.0
    assert note(energy) == ""
