"""Drives one headless LibreOffice for the tests; runs under a Python that has LibreOffice's ``uno`` module.

usage: libreoffice_driver.py SOFFICE PROFILE_URL [OPTION ...]

Each line of standard input is JSON ``{"do": name, ...}``, each line of standard output its answer
``{"answer": ...}`` or ``{"failed": words}``. LibreOffice is reached through a pipe; it opens no port.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import uno
from com.sun.star.beans import PropertyValue
from com.sun.star.sheet.CellFlags import FORMULA
from com.sun.star.sheet.FillDirection import TO_BOTTOM
from com.sun.star.sheet.FormulaResult import ERROR

XLSX = "Calc MS Excel 2007 XML"


def properties(**values):
    return tuple(PropertyValue(name, 0, value, 0) for name, value in values.items())


class Office:
    def __init__(self, soffice, profile, options):
        pipe = f"xlperf{os.getpid()}"
        accept = f"--accept=pipe,name={pipe};urp;"
        flags = ["--headless", "--norestore", "--nologo", "--nodefault", "--nofirststartwizard"]
        self.process = subprocess.Popen(
            [soffice, *flags, accept, f"-env:UserInstallation={profile}", *options],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
        context = uno.getComponentContext()
        resolver = context.ServiceManager.createInstance("com.sun.star.bridge.UnoUrlResolver")
        begin = time.monotonic()
        while True:
            try:
                self.context = resolver.resolve(f"uno:pipe,name={pipe};urp;StarOffice.ComponentContext")
                break
            except Exception:
                if self.process.poll() is not None or time.monotonic() - begin > 600:
                    raise
                time.sleep(0.1)
        self.desktop = self.context.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", self.context)
        self.document = None

    def end(self):
        with contextlib.suppress(Exception):
            self.desktop.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its launcher may be gone while LibreOffice hangs

    # --- what a test asks for

    def version(self):
        provider = self.context.ServiceManager.createInstance("com.sun.star.configuration.ConfigurationProvider")
        path = properties(nodepath="/org.openoffice.Setup/Product")
        node = provider.createInstanceWithArguments("com.sun.star.configuration.ConfigurationAccess", path)
        return node.getByName("ooSetupVersion")

    def open(self, path, hidden=True, macros=False):
        url = path if path.startswith("private:") else uno.systemPathToFileUrl(path)
        how = properties(Hidden=hidden, MacroExecutionMode=4 if macros else 0)
        self.document = self.desktop.loadComponentFromURL(url, "_blank", 0, how)
        return self.document is not None

    def close(self):
        self.document.close(True)
        self.document = None

    def save(self):
        self.document.store()

    def save_as(self, path, filter_name=XLSX):
        self.document.storeAsURL(uno.systemPathToFileUrl(path), properties(FilterName=filter_name))

    def export(self, path, filter_name=XLSX):
        self.document.storeToURL(uno.systemPathToFileUrl(path), properties(FilterName=filter_name))

    def modified(self):
        return self.document.isModified()

    def recalculate(self, everything=True):
        begin = time.monotonic()
        if everything:
            self.document.calculateAll()
        else:
            self.document.calculate()
        return time.monotonic() - begin

    def macro(self, name, arguments):
        """Run a procedure of the document's Basic."""
        place = f"vnd.sun.star.script:{name}?language=Basic&location=document"
        return self.document.getScriptProvider().getScript(place).invoke(tuple(arguments), (), ())[0]

    def sheets(self):
        return list(self.document.Sheets.ElementNames)

    def used(self, sheet):
        cursor = self.document.Sheets.getByName(sheet).createCursor()
        cursor.gotoEndOfUsedArea(False)
        address = cursor.getRangeAddress()
        return [address.EndRow + 1, address.EndColumn + 1]

    def cells(self, sheet, area):
        """Rows of cells: value as hexadecimal float, or text, or error; and the formula."""
        found = self.document.Sheets.getByName(sheet).getCellRangeByName(area)
        corner = found.getRangeAddress()
        values = found.getDataArray()
        rows = [
            [self._cell(value, formula) for value, formula in zip(*pair, strict=True)]
            for pair in zip(values, found.getFormulaArray(), strict=True)
        ]
        for place in found.queryFormulaCells(ERROR).getRangeAddresses():
            for row in range(place.StartRow - corner.StartRow, place.EndRow - corner.StartRow + 1):
                for column in range(place.StartColumn - corner.StartColumn, place.EndColumn - corner.StartColumn + 1):
                    cell = found.getCellByPosition(column, row)
                    rows[row][column] = {
                        "error": cell.getError(),
                        "shown": cell.getString(),
                        "formula": cell.getFormula(),
                    }
        return rows

    @staticmethod
    def _cell(value, formula):
        is_formula = formula.startswith(("=", "{=")) and formula != value
        about = {"formula": formula if is_formula else None}
        if isinstance(value, str):
            return {**about, "text": value} if value or is_formula else {**about, "empty": True}
        return {**about, "number": float(value or 0.0).hex()}  # None where there is an error

    def enter(self, sheet, area, value=None, formula=None, array=None):
        found = self.document.Sheets.getByName(sheet).getCellRangeByName(area)
        begin = time.monotonic()
        if array is not None:
            found.setArrayFormula(array)
        elif formula is not None:
            found.getCellByPosition(0, 0).setFormula(formula)
        elif isinstance(value, str):
            found.getCellByPosition(0, 0).setString(value)
        else:
            found.getCellByPosition(0, 0).setValue(value)
        return time.monotonic() - begin

    def fill(self, sheet, area, rows):
        self.document.Sheets.getByName(sheet).getCellRangeByName(area).setDataArray(tuple(map(tuple, rows)))

    def fill_formulas(self, sheet, area, rows):
        begin = time.monotonic()
        self.document.Sheets.getByName(sheet).getCellRangeByName(area).setFormulaArray(tuple(map(tuple, rows)))
        return time.monotonic() - begin

    def fill_down(self, sheet, area):
        """Fill the formulas of the first row of an area down, as people do."""
        begin = time.monotonic()
        self.document.Sheets.getByName(sheet).getCellRangeByName(area).fillAuto(TO_BOTTOM, 1)
        return time.monotonic() - begin

    def data(self, sheet, area):
        """Values of an area at once: numbers and texts, null for errors."""
        return self.document.Sheets.getByName(sheet).getCellRangeByName(area).getDataArray()

    def add_sheet(self, name):
        self.document.Sheets.insertNewByName(name, self.document.Sheets.Count)

    def clear_formulas(self, sheets):
        for name in sheets:
            cells = self.document.Sheets.getByName(name)
            cursor = cells.createCursor()
            cursor.gotoEndOfUsedArea(False)
            end = cursor.getRangeAddress()
            cells.getCellRangeByPosition(0, 0, end.EndColumn, end.EndRow).clearContents(FORMULA)

    def wizard(self, name):
        """What the function wizard shows of a function."""
        functions = self.context.ServiceManager.createInstance("com.sun.star.sheet.FunctionDescriptions")
        for number in range(functions.getCount()):
            about = {one.Name: one.Value for one in functions.getByIndex(number)}
            if about["Name"] == name:
                arguments = [[one.Name, one.Description, one.IsOptional] for one in about["Arguments"]]
                return {"description": about["Description"], "arguments": arguments}
        return None

    def process_id(self):
        return self.process.pid


def main():
    office = Office(sys.argv[1], sys.argv[2], sys.argv[3:])
    try:
        print(json.dumps({"answer": "ready"}), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = {"answer": getattr(office, request.pop("do"))(**request)}
            except Exception as error:
                answer = {"failed": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        office.end()


if __name__ == "__main__":
    main()
