"""What stands for a number in a cell is one: money, numbers in a date format, dates, times, numpy's types."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
from conftest import show
from openpyxl.utils.datetime import CALENDAR_MAC_1904, from_excel, to_excel
from places import SUPPORT

from xlperf.addin.worker import Session, answer
from xlperf.base.errors import InputError
from xlperf.catalog.cells import DateNumber, as_number, serial_number
from xlperf.catalog.parse import table_from_columns, table_from_rows
from xlperf.catalog.read import read_plans

HEADER = ["name", "model", "accelerator", "num accelerators", "tensor parallel", "ttft target (ms)", "prompt length",
          "output length"]  # fmt: skip
DAY = datetime.timedelta(days=1)
SERIALS = [0.25, 1.0, 1.5, 31.0, 59.0, 61.0, 64.0, 366.0, 5.847, 2958465.0, 46023.0, 46023.5]


@pytest.mark.parametrize("serial", SERIALS)
def test_dates_of_openpyxl_are_the_numbers_of_their_cells(serial: float) -> None:
    """A number in a date format as pandas and openpyxl hand it over, in both date systems."""
    result = from_excel(serial)
    assert as_number(result) == pytest.approx(serial, abs=2e-8)  # openpyxl rounds to milliseconds
    if serial == int(serial):
        assert as_number(result) == serial == to_excel(result)
        date = from_excel(serial, CALENDAR_MAC_1904) if serial < 2_900_000 else datetime.datetime(9999, 12, 31)
        assert serial_number(date, date_1904=True) == (serial if serial < 2_900_000 else 2957003.0)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (Decimal("2.49"), 2.49),
        (Decimal("1e3"), 1000.0),
        (datetime.date(1900, 3, 4), 64.0),
        (datetime.datetime(1900, 3, 4, 12, tzinfo=datetime.UTC), 64.5),
        (datetime.time(6), 0.25),
        (datetime.timedelta(days=8), 8.0),
        (np.datetime64("1900-03-04"), 64.0),
        (np.timedelta64(36, "h"), 1.5),
        (np.int32(8), 8),
        (np.float32(0.5), 0.5),
        (np.uint8(4), 4),
        (8, 8),
    ],
)
def test_what_hosts_and_libraries_hand_over(value: Any, number: float) -> None:
    header = ["price", "year", "rental price"]
    table = table_from_rows("prices", header, [["H100-SXM-80GB", 2026, value]])
    plain = table_from_rows("prices", header, [["H100-SXM-80GB", 2026, float(number)]])
    assert table["rental_price"].tolist() == plain["rental_price"].tolist()


@pytest.mark.parametrize("value", [True, np.bool_(True), Decimal("NaN"), np.datetime64("NaT"), "64"])
def test_what_is_no_number_stays_none(value: Any) -> None:
    with pytest.raises(InputError, match="num accelerators must be"):
        table_from_rows("training", ["model", "accelerator", "num accelerators"], [["a", "b", value]])


def test_columns_of_dates_are_numbers() -> None:
    days = np.array(["1900-03-04", "1900-03-05"], dtype="datetime64[ns]")
    columns = {"model": np.array(["a", "b"]), "accelerator": np.array(["a", "b"]), "num accelerators": days}
    assert table_from_columns("training", columns)["num_accelerators"].tolist() == [64.0, 65.0]


@pytest.mark.parametrize("date_1904", [False, True])
@pytest.mark.parametrize("style", ["yyyy-mm-dd", "h:mm", "[h]:mm", '#,##0.00 "EUR"', "[$-409]d mmm yyyy", "0.00 €"])
def test_numbers_of_a_workbook_in_any_format(style: str, date_1904: bool, tmp_path: Path) -> None:
    """A cell in a date, time or currency format holds the number that it holds without, in both date systems."""
    values = ["one", "Llama3-70B", "H100-SXM-80GB", 64, 8, 5.847, 1000, 100]
    paths = [tmp_path / "plain.xlsx", tmp_path / "styled.xlsx"]
    for path in paths:
        book = openpyxl.Workbook()
        if date_1904:
            book.epoch = CALENDAR_MAC_1904
        sheet = book.active
        assert sheet is not None
        sheet.title = "inference"
        sheet.append(HEADER)
        sheet.append(values)
        for cell in sheet[2] if path.name == "styled.xlsx" else []:
            if not isinstance(cell.value, str):
                cell.number_format = style
        book.save(path)
    (plain,), (styled,) = read_plans(paths[0]), read_plans(paths[1])
    for name, column in plain.columns.items():
        assert styled[name].tolist() == column.tolist() or np.array_equal(styled[name], column, equal_nan=True), name


def test_dates_of_a_workbook_are_dates_where_a_text_is_meant(tmp_path: Path) -> None:
    for date_1904 in (False, True):
        book = openpyxl.Workbook()
        if date_1904:
            book.epoch = CALENDAR_MAC_1904
        sheet = book.active
        assert sheet is not None
        sheet.title = "training"
        sheet.append(HEADER[:5])
        sheet.append([datetime.datetime(2026, 1, 2), "Llama3-70B", "H100-SXM-80GB", datetime.datetime(1904, 3, 5), 8])
        book.save(tmp_path / "dates.xlsx")
        (table,) = read_plans(tmp_path / "dates.xlsx")
        assert table["name"].tolist() == ["2026-01-02"]
        assert table["num_accelerators"].tolist() == [64.0 if date_1904 else 1526.0]
        assert "2026-01-02\t" in show(tmp_path / "dates.xlsx")


def test_a_date_without_a_calendar_is_its_number() -> None:
    assert DateNumber(1e9).text == "1000000000"
    assert isinstance(DateNumber(2.0) * 2.0, float)


CARD = [["model", "Llama3-70B"], ["accelerator", "H100-SXM-80GB"], ["num accelerators", 64.0], ["tensor parallel", 8.0]]


def test_functions_take_what_stands_for_numbers(tmp_path: Path) -> None:
    from xlperf.addin.handles import CatalogStore

    session = Session(CatalogStore(tmp_path))
    expected = session.call("XLPERF_STEP_TIME", [CARD])
    for eight in (Decimal("8"), datetime.datetime(1900, 1, 8), datetime.timedelta(days=8), np.float64(8), np.int64(8)):
        assert session.call("XLPERF_STEP_TIME", [[*CARD[:3], ["tensor parallel", eight]]]) == expected
    prices = [["price", "year", "rental price (USD/h)"], ["H100-SXM-80GB", 2026.0, 2.49]]
    money = [prices[0], [*prices[1][:2], Decimal("2.49")]]
    assert session.call("XLPERF_CATALOG", [money]) == session.call("XLPERF_CATALOG", [prices])
    line = json.dumps({"function": "XLPERF_STEP_TIME", "arguments": [CARD]}).encode()
    assert json.loads(answer(session, line))["rows"] == expected


@pytest.mark.parametrize("date_1904", [False, True])
def test_dates_that_excel_hands_to_xlwings_are_numbers(date_1904: bool) -> None:
    """Dates between programs on Windows count from 1899-12-30, in workbooks that count from 1904 as well."""
    program = (
        "import datetime, json, sys; sys.path.insert(0, sys.argv[1])\n"
        "import xlwings_windows; xlwings_windows.windows_xlwings()\n"
        "from xlperf.addin import xlwings_functions as made\n"
        f"made.counts_from_1904 = lambda: {date_1904}\n"
        "start = datetime.datetime(1899, 12, 30)\n"
        f"serials = [1.0, 59.0, 64.0, 5.847, 46023.5]\n"
        f"shift = {1462.0 if date_1904 else 0.0}\n"
        "dates = [start + datetime.timedelta(days=serial + shift) for serial in serials]\n"
        "print(json.dumps([serials, made.numbers([dates])[0], made.numbers([['text', 2.0]])[0]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(SUPPORT)],
        env=dict(os.environ), capture_output=True, text=True, timeout=1100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    serials, result, others = json.loads(done.stdout.splitlines()[-1])
    assert result == serials and others == ["text", 2.0]


def test_a_number_in_a_cell_may_have_its_unit_as_an_option_may() -> None:
    header = ["model", "accelerator", "ISL", "OSL", "facility power limit", "ttft target"]
    row = ["Llama3-8B", "H100", 2000, 500]
    table = table_from_rows("serve", header, [[*row, "600 kW", "1.5 s"], [*row, 0.6, 1500]])
    for name in ("facility_power_limit", "ttft_target"):
        values = table.number(name)
        assert values[0] == values[1]
    for wrong in ("600 kg", "600 k", "600"):
        with pytest.raises(InputError, match=f'facility power limit must be .*"{wrong}"'):
            table_from_rows("serve", header, [[*row, wrong, 1500]])
