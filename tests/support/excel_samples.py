"""A package as Excel writes it, made by hand: shared strings, rich text, dates, saved and shared formulas."""

from __future__ import annotations

import zipfile
from pathlib import Path

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"

_PARTS = {
    "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}"><Relationship Id="rId1" Type="{_OFFICE}/officeDocument" '
    'Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<x:workbook xmlns:x="{_MAIN}" xmlns:r="{_OFFICE}"><x:workbookPr DATE1904/>'
    '<x:sheets><x:sheet name="Chart1" sheetId="1" r:id="rId9"/><x:sheet name="Training" sheetId="2" r:id="rId1"/>'
    "</x:sheets></x:workbook>",
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/worksheet" Target="worksheets/sheet1.xml"/>'
    f'<Relationship Id="rId2" Type="{_OFFICE}/sharedStrings" Target="/xl/sharedStrings.xml"/>'
    f'<Relationship Id="rId3" Type="{_OFFICE}/styles" Target="styles.xml"/>'
    f'<Relationship Id="rId4" Type="{_OFFICE}/externalLink" Target="http://x/y" TargetMode="External"/>'
    f'<Relationship Id="rId9" Type="{_OFFICE}/chartsheet" Target="chartsheets/sheet1.xml"/></Relationships>',
    "xl/sharedStrings.xml": f'<sst xmlns="{_MAIN}">'
    "<si><t>model</t></si><si><t>accelerator</t></si><si><t>num accelerators</t></si><si><t>tensor parallel</t></si>"
    "<si><t>sequence parallel</t></si><si><t>name</t></si><si><t>global batch size</t></si>"
    '<si><r><t>llama</t></r><r><rPr><b/></rPr><t xml:space="preserve">-2-7b </t></r>'
    '<rPh sb="0" eb="1"><t>noise</t></rPh></si><si><t>step time (s)</t></si><si><t>two_x000D_\nlines</t></si></sst>',
    "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><numFmts><numFmt numFmtId="164" formatCode="yyyy\\-mm\\-dd"/>'
    '<numFmt numFmtId="165" formatCode="0.0&quot; days&quot;"/></numFmts><cellStyleXfs><xf numFmtId="14"/>'
    '</cellStyleXfs><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="164"/><xf numFmtId="165"/></cellXfs>'
    "</styleSheet>",
    "xl/worksheets/sheet1.xml": f"""<worksheet xmlns="{_MAIN}"><sheetData>
<row r="1"><c r="B1" t="s"><v>5</v></c></row>
<row r="3"><c r="B3" t="s"><v>5</v></c><c t="s"><v>0</v></c><c t="s"><v>1</v></c><c r="E3" t="s"><v>2</v></c>
<c r="F3" t="s"><v>3</v></c><c r="G3" t="s"><v>4</v></c><c r="H3" t="s"><v>6</v></c><c r="I3" t="s"><v>8</v></c></row>
<row r="4"><c r="B4" t="s"><v>9</v></c><c r="C4" t="s"><v>7</v></c><c r="D4" t="str"><f>"H"&amp;100</f><v>H100</v></c>
<c r="E4"><f>2*4</f><v>8</v></c><c r="F4"><f t="shared" ref="F4:F6" si="0">E4/4</f><v>2</v></c>
<c r="G4" t="b"><v>1</v></c><c r="H4" s="3"><v>16</v></c><c r="I4" t="e"><f>1/0</f><v>#DIV/0!</v></c></row>
<row r="5"><c r="B5" s="2"/></row>
<row r="6"><c r="B6" t="str"><f>IF(1,"","")</f><v></v></c><c r="C6" t="inlineStr"><is><t>gpt-3</t></is></c>
<c r="D6" t="inlineStr"><is><r><t>A1</t></r><r><t>00</t></r></is></c><c r="E6"><v>1.6E1</v></c>
<c r="F6"><f t="shared" si="0"/><v>4</v></c><c r="G6" t="b"><v>0</v></c><c r="H6" s="DATE"><v>4096</v></c>
<c r="I6"><f t="array" ref="I6">SUM(E4:E6)</f><v>24</v></c></row>
<row r="7"><c r="C7"><v>0</v></c></row>
</sheetData></worksheet>""",
    "xl/worksheets/_rels/sheet1.xml.rels": f'<Relationships xmlns="{_PACKAGE}">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/table" Target="../tables/table1.xml"/></Relationships>',
    "xl/tables/table1.xml": f'<table xmlns="{_MAIN}" id="1" name="Table1" displayName="Training_1" ref="B3:I7" '
    'totalsRowCount="1"/>',
}


def write_as_excel(path: Path, date_style: int = 0, date_1904: bool = False) -> Path:
    """Write the package; ``date_style`` is the style of the global batch size of the second plan."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in _PARTS.items():
            text = content.replace("DATE1904", 'date1904="1"' if date_1904 else "").replace("DATE", str(date_style))
            package.writestr(name, '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n' + text)
    return path
