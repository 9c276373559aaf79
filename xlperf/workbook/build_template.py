"""Builds ``templates/report.xlsx``: the sheets of a report with their titles, styles and print set-up, without data.

Run ``python -m xlperf.workbook.build_template [FILE]``; the same code gives the same bytes. A template that was changed
by hand (fonts, colours, a logo in the header, paper size) keeps working: reports are filled into what stands there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from openpyxl import Workbook

from xlperf.base import resources
from xlperf.workbook.report_summary import SHEETS
from xlperf.workbook.save import save_workbook
from xlperf.workbook.style import add_styles, link, page_setup, title

_PLANS = "Blue on cream: the plan. Black: computed. Amber rows do not fit in memory, red rows are refused; see reason."
_SUBTITLES = {
    "training": _PLANS,
    "inference": _PLANS,
    "step time": "Exposed time on the critical stage; parts add up to the step. Behind a plan stands its step time.",
    "inference time": "Parts of one decode step at the mean context. Behind a plan stands its time per token.",
    "limits": "Plans with targets, best plans of models and accelerators; one request to full memory, right to left.",
    "memory": "Columns: what the fullest accelerator holds. Red line: what it has. GiB = 2^30 B.",
    "roofline": "Best plans of the leading accelerators. Left of a ridge memory limits, right of it arithmetic.",
    "token cost": "Owned, as the first row of servers with the accelerator; the network is that of the plan.",
    "cost bridge": "What each line adds to the cost and the energy of a token; the lines of a plan add up to the last.",
    "accelerator cost": "Columns stand on the parts before them, totals on the ground. Prices: the sheets of cost.",
    "chiplets or one die": "One large die against several small ones.",
    "reasons": "Refused plans first, then plans that do not fit, then plans whose numbers rest on an assumption.",
    "assumptions": "What the numbers rest on.",
    "accelerators": "Rows of the catalog that the plans use.",
    "networks": "Rows of the catalog that the plans use; tier 1 is the innermost.",
    "models": "Rows of the catalog that the plans use.",
    "prices": "Rows of the catalog that the plans use.",
    "calibration": "Measured and fitted constants for the generations, precisions and software of the plans.",
}
_TABS = {"summary": "1B3A57", "training": "0F6B6B", "inference": "0F6B6B", "reasons": "A61B1B"}


def template_workbook() -> Workbook:
    """The empty report."""
    workbook = Workbook()
    workbook.remove(workbook.worksheets[0])
    add_styles(workbook)
    for name in ("summary", *SHEETS):
        sheet: Any = workbook.create_sheet(name)
        words = "xlperf report" if name == "summary" else name.capitalize()
        title(sheet, words, _SUBTITLES.get(name, ""))
        if name != "summary":
            link(sheet["A3"], "summary", "to the summary")
            sheet.row_dimensions[3].height = 20
        sheet.sheet_properties.tabColor = _TABS.get(name, "8FA3B5")
        sheet.sheet_view.zoomScale = 100
        page_setup(sheet)
    return workbook


def main(arguments: list[str]) -> None:
    """Write the template to the file given, or to where xlperf reads it."""
    save_workbook(template_workbook(), Path(arguments[0]) if arguments else resources.template("report.xlsx"))


if __name__ == "__main__":
    main(sys.argv[1:])
