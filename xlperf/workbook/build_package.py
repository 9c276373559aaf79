"""Values beside the formulas of a workbook, so that a viewer that cannot calculate them shows numbers.

openpyxl writes a formula or a value, never both: the values are put into the parts of the package afterwards.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from xlperf.addin.cells import CellError
from xlperf.workbook.save import workbook_bytes
from xlperf.workbook.style import put

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.cell import Cell

_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_FORMULA_CELL = re.compile(r'<c r="([A-Z]+[0-9]+)"([^>]*)><f>(.*?)</f><v\s*(?:/>|></v>)</c>', re.DOTALL)


@dataclass
class Formulas:
    """Formulas that were written to a workbook and the values that they have.

    Attributes
    ----------
    values : dict
        By sheet and cell: a number, text, flag or CellError; None where the value is not known.
    """

    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def put(self, cell: Cell, formula: str, value: Any, style: str = "xlperf computed", number: str = "") -> None:
        """Write a formula to a cell and remember its value.

        Parameters
        ----------
        cell : openpyxl.cell.Cell
            Changed in place.
        formula : str
            Starts with ``=``; structured references as files hold them.
        value : float, str, bool, CellError or None
            What the formula gives.
        style : str
            A style of :mod:`xlperf.workbook.style`.
        number : str
            Number format.
        """
        put(cell, None, style, number or None)
        inside: Any = cell
        inside.value = formula
        inside.data_type = "f"
        if value is not None:
            self.values.setdefault(cell.parent.title, {})[cell.coordinate] = value


def packed(workbook: Workbook, formulas: Formulas) -> bytes:
    """The package of a workbook with the values of its formulas; the same content gives the same bytes.

    Parameters
    ----------
    workbook : openpyxl.Workbook
        What to save.
    formulas : Formulas
        The formulas that were put into it.

    Returns
    -------
    bytes
        An .xlsx file.
    """
    # Without this Excel calculates all on opening, and shows #NAME? where the add-in is not installed.
    workbook.calculation.fullCalcOnLoad = False
    workbook.calculation.calcId = 191029
    data = workbook_bytes(workbook)
    parts = {
        f"xl/worksheets/sheet{number}.xml": formulas.values[title]
        for number, title in enumerate(workbook.sheetnames, start=1)
        if formulas.values.get(title)
    }
    result = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as source,
        zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as target,
    ):
        for name in source.namelist():
            content = source.read(name)
            if name in parts:
                content = with_values(content.decode(), parts[name]).encode()
            info = zipfile.ZipInfo(name, _ZIP_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            info.create_system = 3
            target.writestr(info, content)
    return result.getvalue()


FLAG_FORMAT = '[=1]"TRUE";[=0]"FALSE";General'


def with_values(part: str, values: Mapping[str, Any]) -> str:
    """The text of a sheet's part with values beside its formulas.

    Parameters
    ----------
    part : str
        As openpyxl writes it.
    values : mapping of str to float, bool, str or CellError
        By cell.

    Returns
    -------
    str
        The part; formulas without a value are left as they are.

    Raises
    ------
    ValueError
        When a cell that has a value holds no formula.

    >>> with_values('<c r="B2" s="3"><f>1+1</f><v /></c>', {"B2": 2.0})
    '<c r="B2" s="3"><f>1+1</f><v>2</v></c>'
    """
    left = dict(values)

    def filled(found: re.Match[str]) -> str:
        cell, attributes, formula = found.groups()
        if cell not in left:
            return found[0]
        kind, text = _stored(left.pop(cell))
        return f'<c r="{cell}"{attributes}{kind}><f>{formula}</f><v>{text}</v></c>'

    result = _FORMULA_CELL.sub(filled, part)
    if left:
        raise ValueError(f"no formula in {', '.join(left)}")
    return result


def _stored(value: Any) -> tuple[str, str]:
    """Type and text of a value. A flag is a number: LibreOffice calculates formulas again that hold a boolean."""
    if isinstance(value, CellError):
        return ' t="e"', escape(value.code)
    if isinstance(value, str):
        return ' t="str"', escape(value)
    number = float(value)
    return "", str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
