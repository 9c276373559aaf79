"""The part of xlperf that runs inside LibreOffice: cells are handed to the worker, workbooks are made to recalculate.

It holds no functions of its own: ``functions.json`` beside it, written from the registry, names them.
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import os
import re
import sys
import traceback

import uno
import unohelper
from com.sun.star.lang import XServiceInfo
from com.sun.star.sheet.FillDirection import TO_BOTTOM
from com.sun.star.task import XJob
from xlperf_host.client import Client, WorkerError, stale_words
from xlperf_host.host import (
    CalcTables,
    Neighbours,
    argument,
    by_own_function,
    error_value,
    make_portable,
    method_of,
    portable_name,
    result,
)

try:
    from org.xlperf import XXlperf
except ImportError:  # the type library is not known yet while the extension is being registered
    from com.sun.star.sheet import XAddIn as XXlperf

ADDIN = "XLPERF"
DOCUMENT_JOB = "org.xlperf.DocumentJob"
CATALOG = "catalog"  # the name of the cell that every result refers to
REPORT = "xlperf_report"  # the name of a cell of a report
FOLDER = os.path.dirname(os.path.abspath(__file__))

with open(os.path.join(FOLDER, "functions.json"), encoding="utf-8") as stream:
    CONFIGURATION = json.load(stream)

FUNCTIONS = CONFIGURATION["functions"]
CLIENT = Client(CONFIGURATION["command"], CONFIGURATION["time_limit"])
NEIGHBOURS = Neighbours(CLIENT, CalcTables())
MOST_SINGLE = 50  # formulas of one look that are entered one by one
RESULTS = {name for name, about in FUNCTIONS.items() if about["is_per_plan"] and not about["says_faults"]}
METHODS = "|".join(map(method_of, FUNCTIONS))
CALLS = re.compile(rf"\bXLPERF(?:[._]({METHODS}))?\s*\(", re.IGNORECASE)


def _method(name, says_faults, repeated, is_per_plan):
    def method(self, *arguments):
        if repeated:
            arguments = arguments[0]
        try:
            if is_per_plan:
                document, *arguments = arguments
                asked = by_own_function(name, [argument(value) for value in arguments], RESULTS)
                rows = NEIGHBOURS.call(document, *asked)
                stale = says_faults and stale_words(CONFIGURATION["version"], CLIENT.version, "libreoffice")
                return result([[f"{row[0]}; {stale}"] for row in rows] if stale else rows)
            return result(CLIENT.call(name, [argument(value) for value in arguments]))
        except WorkerError as error:
            return ((str(error) if says_faults else error_value("#VALUE!"),),)

    method.__name__ = name
    return method


class AddIn(unohelper.Base, XXlperf, XServiceInfo):
    """The functions, one method each. Calc makes one when it starts to load its first document."""

    def __init__(self, context, *arguments):
        self.context = context
        CLIENT.start()

    def getImplementationName(self):
        return ADDIN

    def supportsService(self, name):
        return name in self.getSupportedServiceNames()

    def getSupportedServiceNames(self):
        return (ADDIN, "com.sun.star.sheet.AddIn")


for _name, _about in FUNCTIONS.items():
    setattr(AddIn, method_of(_name), _method(_name, **_about))


def refresh(document):
    """Enter the formulas that call xlperf again: LibreOffice shows saved values, and 7.4 does not know underscore names
    on load.
    """
    modified = document.isModified()
    undo = document.getUndoManager()
    undo.lock()
    document.addActionLock()
    document.lockControllers()
    automatic = document.isAutomaticCalculationEnabled()
    document.enableAutomaticCalculation(False)
    try:
        entered = sum(_refresh_sheet(sheet) for sheet in document.getSheets())
        names = document.NamedRanges
        for name in names.getElementNames():
            named = names.getByName(name)
            if CALLS.search(named.getContent()):
                named.setContent(named.getContent())
    finally:
        document.unlockControllers()
        document.removeActionLock()
        document.enableAutomaticCalculation(automatic)
        undo.unlock()
    if entered:
        document.calculate()
    if document.isModified() != modified:
        document.setModified(modified)
    return entered


def _refresh_sheet(sheet):
    search = sheet.createSearchDescriptor()
    search.SearchRegularExpression = True
    search.SearchType = 0  # in formulas
    search.SearchString = r"XLPERF([._][A-Z_]+)?\s*\("
    matches = sheet.findAll(search)
    if matches is None:
        return 0
    arrays = set()
    entered = 0
    for place in matches.getRangeAddresses():
        area = sheet.getCellRangeByPosition(place.StartColumn, place.StartRow, place.EndColumn, place.EndRow)
        if _has_scalar_calls_only(area):
            for column in range(place.StartColumn, place.EndColumn + 1):
                _enter_again(sheet, column, place.StartRow, place.EndRow)
            entered += (place.EndRow - place.StartRow + 1) * (place.EndColumn - place.StartColumn + 1)
            continue
        for row in range(place.StartRow, place.EndRow + 1):
            for column in range(place.StartColumn, place.EndColumn + 1):
                cell = sheet.getCellByPosition(column, row)
                if cell.getType().value != "FORMULA":
                    continue
                formula = cell.getFormula()
                if not CALLS.search(formula):
                    continue
                if formula.startswith("{"):
                    area = sheet.createCursorByRange(cell)
                    area.collapseToCurrentArray()
                    address = area.getRangeAddress()
                    key = (address.StartColumn, address.StartRow)
                    if key not in arrays:
                        arrays.add(key)
                        area.setArrayFormula(formula.strip("{}"))
                else:
                    cell.setFormula(formula)
                entered += 1
    return entered


def _enter_again(sheet, column, first, last):
    """Enter the formulas of a column again; stretches of one formula are filled down.

    Cell by cell LibreOffice joins each formula to the group above it, in quadratic time: 5 s for 10,000. Filling also
    copies the look of the first cell, so it is limited to cells of one look.
    """
    area = sheet.getCellRangeByPosition(column, first, column, last)
    looks = area.getUniqueCellFormatRanges()
    parts = [place for number in range(looks.getCount()) for place in looks.getByIndex(number).getRangeAddresses()]
    if last - first + 1 < MOST_SINGLE * len(parts):
        area.setFormulaArray(area.getFormulaArray())
        return
    for place in parts:
        _fill_again(sheet.getCellRangeByPosition(column, place.StartRow, column, place.EndRow))


def _fill_again(cells):
    wanted = cells.getFormulaArray()
    cells.getCellByPosition(0, 0).setFormula(wanted[0][0])
    cells.fillAuto(TO_BOTTOM, 1)
    filled = cells.getFormulaArray()
    other = [row for row, new in enumerate(filled) if _name(wanted[row][0]) != _name(new[0])]
    while other:
        length = next((n for n, row in enumerate(other) if row != other[0] + n), len(other))
        first, last = other[0], other[0] + length - 1
        cells.getCellRangeByPosition(0, first, 0, last).setFormulaArray(wanted[first : last + 1])
        other = other[length:]


def _name(formula):
    return CALLS.sub(lambda match: portable_name(match[0]), formula)


def _has_scalar_calls_only(area):
    """Whether every cell of an area is a formula that calls us, and none belongs to an array formula."""
    formulas = area.queryContentCells(16)  # com.sun.star.sheet.CellFlags.FORMULA: a text that looks like one is none
    if formulas.getRangeAddressesAsString() != area.AbsoluteName.replace("$", ""):
        return False
    return all(CALLS.search(one) and not one.startswith("{") for line in area.getFormulaArray() for one in line)


def portable(document):
    """Give a workbook that was just saved as .xlsx the function names that Excel knows."""
    url = document.getURL()
    if url.startswith("file:") and url.lower().endswith((".xlsx", ".xlsm")):
        make_portable(uno.fileUrlToSystemPath(url), FUNCTIONS)


def hide_page_ends(document):
    """Hide page breaks over a workbook of ours: LibreOffice draws them for no paper of a sheet."""
    controller = document.getCurrentController()
    if controller is not None and any(document.NamedRanges.hasByName(name) for name in (CATALOG, REPORT)):
        modified = document.isModified()
        controller.ShowPageBreaks = False
        if document.isModified() != modified:
            document.setModified(modified)


_ACTIONS = {
    "OnLoadFinished": refresh,
    "OnViewCreated": hide_page_ends,
    "OnSaveDone": portable,
    "OnSaveAsDone": portable,
}


class DocumentJob(unohelper.Base, XJob, XServiceInfo):
    """Runs when a document was opened or saved."""

    def __init__(self, context, *arguments):
        self.context = context

    def execute(self, arguments):
        environment = {}
        for part in arguments:
            if part.Name == "Environment":
                environment = {one.Name: one.Value for one in part.Value}
        document = environment.get("Model")
        action = _ACTIONS.get(environment.get("EventName"))
        try:
            if action and document and document.supportsService("com.sun.star.sheet.SpreadsheetDocument"):
                action(document)
                if action is hide_page_ends:
                    CLIENT.rest()  # a document is open and has called nothing
        except Exception:
            traceback.print_exc(file=sys.stderr)  # a document opens and saves whatever we make of it

    def getImplementationName(self):
        return DOCUMENT_JOB

    def supportsService(self, name):
        return name in self.getSupportedServiceNames()

    def getSupportedServiceNames(self):
        return (DOCUMENT_JOB, "com.sun.star.task.Job")


g_ImplementationHelper = unohelper.ImplementationHelper()
g_ImplementationHelper.addImplementation(AddIn, ADDIN, (ADDIN, "com.sun.star.sheet.AddIn"))
g_ImplementationHelper.addImplementation(DocumentJob, DOCUMENT_JOB, (DOCUMENT_JOB, "com.sun.star.task.Job"))
