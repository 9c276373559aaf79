"""The add-in's VBA, run for real: LibreOffice Basic calls the wrappers from cells, with the call of Python replaced."""

from __future__ import annotations

import io
import re
import zipfile
from xml.sax.saxutils import escape

from libreoffice_office import Office, shown

from xlperf.addin.excel import MODULE, SERVER_MODULE, addin
from xlperf.addin.vba_project import Project

STUB = """Attribute VB_Name = "xlwings"
Private Calls As Long

Public Function XLPy() As Variant
    Set XLPy = New Collection
End Function

Public Function CallUDF(Where, Called, Given, Book, Cell) As Variant
    Dim Block(0 To 1, 0 To 2) As Variant, Pair(0 To 1) As Variant, Place As Long, Words As String
    If Called = "addin_task" Then
        CallUDF = ""
    ElseIf Called = "XLTEST_FITS" Then
        Block(0, 0) = 1.5: Block(0, 1) = "#N/A": Block(1, 0) = "#VALUE!": Block(1, 1) = "words": Block(1, 2) = True
        CallUDF = Block
    ElseIf Called = "XLTEST_DIE_YIELD" Then
        Pair(0) = 0.25: Pair(1) = "#NUM!"
        CallUDF = Pair
    ElseIf Called = "XLTEST_MFU" Then
        CallUDF = "#N/A"
    ElseIf Called = "XLTEST_HFU" Then
        Calls = Calls + 1
        If Calls Mod 2 = 1 Then Err.Raise 1000
        CallUDF = "the second time"
    ElseIf Called = "XLTEST_CHECK" Or Called = "XLTEST_DIE_COST" Then
        Err.Raise 1000
    Else
        Words = Where & ":" & Called
        For Place = LBound(Given) To UBound(Given)
            Words = Words & ":" & IIf(IsEmpty(Given(Place)), "nothing", IIf(IsArray(Given(Place)), "block", "value"))
        Next Place
        CallUDF = Words
    End If
End Function
"""
# LibreOffice shows what CVErr makes as text.
CELLS = {
    "XLPERF_STEP_TIME(1)": f"{SERVER_MODULE}:XLTEST_STEP_TIME:value:nothing:nothing:nothing:nothing",
    "XLPERF_STEP_TIME(1,2,3)": f"{SERVER_MODULE}:XLTEST_STEP_TIME:value:value:value:nothing:nothing",
    "XLPERF_STEP_TIME({1;2},3)": f"{SERVER_MODULE}:XLTEST_STEP_TIME:block:value:nothing:nothing:nothing",
    "XLPERF_CATALOG(1,{2;3},4)": f"{SERVER_MODULE}:XLTEST_CATALOG:value:block:value",
    "INDEX(XLPERF_FITS(1),1,1)": 1.5,
    "INDEX(XLPERF_FITS(1),1,2)": "Error 2042",
    'INDEX(XLPERF_FITS(1),1,3)&"!"': "!",
    "INDEX(XLPERF_FITS(1),2,1)": "Error 2015",
    "INDEX(XLPERF_FITS(1),2,2)": "words",
    "INDEX(XLPERF_DIE_YIELD(1,2),1,1)": 0.25,
    "INDEX(XLPERF_DIE_YIELD(1,2),1,2)": "Error 2036",
    "XLPERF_MFU(1)": "Error 2042",
    "XLPERF_HFU(1)": "the second time",
    "XLPERF_DIE_COST(1,2)": "Error 2015",
    "LEFT(XLPERF_CHECK(1),23)": "Python does not answer ",
}  # fmt: skip
WRITTEN = (
    "title~A plan~|number~users~1.5|text~model~a b|result~sum~=SUM(R[-2]C[-1]:R[-1]C)|title~best~|"
    "block~~=SUM(R[-4]C:R[-3]C[1])"
)
PROFILE = """<?xml version="1.0"?><oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Common/Security/Scripting">
<prop oor:name="MacroSecurityLevel" oor:op="fuse"><value>0</value></prop></item>
<item oor:path="/org.openoffice.Office.Calc/Formula/Load">
<prop oor:name="OOXMLRecalcMode" oor:op="fuse"><value>0</value></prop></item>
<item oor:path="/org.openoffice.Office.Calc/Filter/Import/VBA">
<prop oor:name="Executable" oor:op="fuse"><value>true</value></prop></item></oor:items>"""


def with_stub(content: bytes) -> bytes:
    """The add-in as a workbook of cells; its functions bear another prefix, as the LibreOffice add-in has ours."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    project = Project.read(parts["xl/vbaProject.bin"])
    source = project.modules[MODULE].source.replace("XLPERF_", "XLTEST_")
    for old, new in (
        ("Python.CallUDF(", "CallUDF("),
        (", ThisWorkbook, Application.Caller)", ", 0, 0)"),
        ('ThisWorkbook, ThisWorkbook.Worksheets(1).Range("A1"))', "0, 0)"),
        ("IRibbonControl", "Object"),
    ):
        assert old in source
        source = source.replace(old, new)
    project.add(MODULE, source)
    project.add("xlwings", STUB)
    project.remove("Dictionary")
    parts["xl/vbaProject.bin"] = project.written()
    types = parts["[Content_Types].xml"]
    parts["[Content_Types].xml"] = types.replace(b"vnd.ms-excel.addin.", b"vnd.ms-excel.sheet.")
    parts["xl/workbook.xml"] = parts["xl/workbook.xml"].replace(b'visibility="hidden" ', b"")
    rows = "".join(
        f'<row r="{number}"><c r="H{number}"><f>{escape(formula.replace("XLPERF_", "XLTEST_"))}</f></c></row>'
        for number, formula in enumerate(CELLS, 1)
    )
    sheet = parts["xl/worksheets/sheet1.xml"].decode()
    sheet = re.sub(r"<sheetData>.*</sheetData>", lambda _: f"<sheetData>{rows}</sheetData>", sheet, flags=re.DOTALL)
    parts["xl/worksheets/sheet1.xml"] = sheet.encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return packed.getvalue()


def test_wrappers_run_in_cells(driven, tmp_path):
    office = Office(tmp_path)
    profile = tmp_path / "profile" / "user"
    profile.mkdir(parents=True)
    (profile / "registrymodifications.xcu").write_text(PROFILE)
    (tmp_path / "book.xlsm").write_bytes(with_stub(addin("python.exe")))
    office.start()
    try:
        office.open(tmp_path / "book.xlsm", hidden=False, macros=True)
        office("recalculate")
        result = [row[0] for row in office.values("xlperf.conf", f"H1:H{len(CELLS)}")]
        for block in (WRITTEN, WRITTEN.replace("1.5", "2")):  # the second finds cells that are not empty
            office("macro", name=f"xlperf.{MODULE}.WriteBlock", arguments=[block])
        written = office("cells", sheet="xlperf.conf", area="B1:C6")  # from the cursor down
    finally:
        office.end()
    assert dict(zip(CELLS, result, strict=True)) == CELLS
    formulas = {
        (row, column): cell["formula"] for row, cells in enumerate(written) for column, cell in enumerate(cells)
    }
    assert formulas[3, 1] == "=SUM(B2:C3)" and formulas[5, 0] == "=SUM(B2:C3)"
    assert [[shown(cell) for cell in row] for row in written[:5]] == [
        ["A plan", None], ["users", 1.5], ["model", "a b"], ["sum", 1.5], ["best", None],
    ]  # fmt: skip
