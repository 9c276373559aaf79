"""The tab of the ribbon: its XML, its callbacks in the VBA, the blocks that its buttons write, versions and updates."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile

import pytest

from xlperf import __version__
from xlperf.addin import xlwings_functions
from xlperf.addin.excel import MODULE, addin
from xlperf.addin.functions import blocks, functions
from xlperf.addin.vba_project import Project
from xlperf.addin.worker import Session
from xlperf.catalog.schema import FORMS, results_of, table_schema
from xlperf.cli.app import run

SPACE = "{http://schemas.microsoft.com/office/2009/07/customui}"
# [MS-CUSTOMUI2]: children of an element, and the attributes that it may have among those that a static tab needs.
CHILDREN = {
    "customUI": {"ribbon"}, "ribbon": {"tabs"}, "tabs": {"tab"}, "tab": {"group"}, "group": {"button", "menu"},
    "menu": {"button"}, "button": set(),
}  # fmt: skip
SHOWN = {"id", "label", "screentip", "supertip", "imageMso"}
ATTRIBUTES = {
    "tab": {"id", "label", "insertAfterMso"}, "group": {"id", "label"}, "menu": {*SHOWN, "size"},
    "button": {*SHOWN, "size", "tag", "onAction"},
}  # fmt: skip
IMAGES = {  # pictures of Office that public add-ins for Excel use
    "Calculator", "ChartInsert", "ErrorChecking", "FindDialog", "GoalSeek", "Help", "MacroPlay", "RefreshAll",
    "ServerConnection", "TableInsertExcel",
}  # fmt: skip
BUTTONS = "Serve Train Chip Plans Search Report Diagnose Check Guide Update".split()
REFERENCE = re.compile(r"R\[(-?\d+)\]C(?:\[(-1)\])?:R\[(-?\d+)\]C(?:\[(1)\])?")


@pytest.fixture(scope="module")
def parts():
    with zipfile.ZipFile(io.BytesIO(addin("python.exe"))) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def ribbon(parts):
    return ET.fromstring(parts["customUI/customUI14.xml"])


@pytest.fixture(scope="module")
def source(parts):
    return Project.read(parts["xl/vbaProject.bin"]).modules[MODULE].source.replace("\r\n", "\n")


# --- the XML


def test_elements_and_attributes_are_those_of_the_schema(ribbon):
    assert ribbon.tag == f"{SPACE}customUI"
    for element in ribbon.iter():
        name = element.tag.removeprefix(SPACE)
        assert {child.tag.removeprefix(SPACE) for child in element} <= CHILDREN[name]
        assert set(element.attrib) <= ATTRIBUTES.get(name, set()), element.attrib
        assert element.get("size", "large") in ("large", "normal")
        assert all(0 < len(value) <= 1024 for value in element.attrib.values())
    assert not [one for menu in ribbon.iter(f"{SPACE}menu") for one in menu if one.get("size")]
    ids = [element.get("id") for element in ribbon.iter() if element.get("id")]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"xlperf_[a-z]+", one) for one in ids)


def test_a_large_button_has_a_picture_and_a_text(ribbon):
    shown = [element for group in ribbon.iter(f"{SPACE}group") for element in group]
    assert [element.get("label") for element in shown] == BUTTONS
    assert {element.get("imageMso") for element in shown} == IMAGES
    assert all(element.get("screentip") and element.get("supertip", "").endswith(".") for element in shown)


def test_every_callback_is_a_procedure_of_the_module(ribbon, source):
    callbacks = {element.get("onAction") for element in ribbon.iter(f"{SPACE}button")}
    assert callbacks == set(re.findall(r"(?m)^Public Sub (\w+)\(ByVal Control As IRibbonControl\)$", source))
    written = {element.get("tag") for element in ribbon.iter(f"{SPACE}button") if element.get("tag")}
    assert written == set(blocks()) == set(re.findall(r'(?m)^        Case "(\w+)"\n            BlockOf = ', source))


def test_the_package_relates_the_ribbon_once(parts):
    root = ET.fromstring(parts["_rels/.rels"])
    assert len({one.get("Id") for one in root}) == len(root)
    (ribbon,) = [one for one in root if one.get("Type", "").endswith("/ui/extensibility")]
    assert ribbon.get("Type") == "http://schemas.microsoft.com/office/2007/relationships/ui/extensibility"
    assert ribbon.get("Target") == "customUI/customUI14.xml" and set(parts) > {ribbon.get("Target")}
    kinds = ET.fromstring(parts["[Content_Types].xml"])
    assert "application/xml" in [one.get("ContentType") for one in kinds if one.get("Extension") == "xml"]


def test_the_wizard_gets_each_function_with_its_category(source):
    described = re.findall(r'(?m)^    Describe "([a-z ]+)", "([A-Z_ ]+)", Array\(', source)
    assert {name: category for category, names in described for name in names.split()} == {
        name: function.category for name, function in functions().items()
    }


# --- blocks


def called(name, row):
    """The call of a formula of a block: function, arguments, its ranges as rows of cells."""
    written = blocks()[name]
    function, _, arguments = written[row].value.removeprefix("=").rstrip(")").partition("(")

    def cells(match):
        first, last = row + int(match[1]), row + int(match[3])
        assert bool(match[2]) != bool(match[4]) and (match[2] is None) == (written[row].kind == "block")
        assert all(one.kind == "input" for one in written[first : last + 1])
        given.append([[one.label, one.value] for one in written[first : last + 1]])
        return ""

    given: list = []
    others = REFERENCE.sub(cells, arguments).replace(",", " ").split('"')
    given += [float(word) if word.strip().isdigit() else word for word in others if word.strip()]
    return function, given


@pytest.mark.parametrize(
    ("name", "row"),
    [(name, row) for name, rows in blocks().items() for row, one in enumerate(rows) if one.kind in ("result", "block")],
)
def test_every_formula_of_a_block_has_an_answer(name, row):
    function, given = called(name, row)
    answer = Session().call(function, given)
    cells = [cell for line in answer for cell in line]
    assert all(isinstance(cell, float | bool | str) for cell in cells) and cells[0] != ""
    assert not str(cells[0]).startswith("No answer")
    label, kind = blocks()[name][row].label, {"training": "training", "serving": "inference"}.get(name, name)
    if label and label != "check":
        (column,) = [one for one in results_of(kind).columns if one.header == label]
        assert label == "answer" or f'"{column.name.replace("_", " ")}"' in blocks()[name][row].value


@pytest.mark.parametrize("name", blocks())
def test_labels_of_inputs_are_headers_of_the_sheet(name):
    kind = name if name in FORMS else "inference" if name == "serving" else "training"
    known = {column.header for column in (*table_schema(kind).columns, *results_of(kind).columns)}
    assert {one.label for one in blocks()[name] if one.kind == "input"} <= known
    assert [one.kind for one in blocks()[name]][:2] == ["title", "input"]


def test_vba_has_the_blocks_as_texts(source):
    for name, rows in blocks().items():
        (lines,) = re.findall(rf'(?m)^        Case "{name}"\n((?:            BlockOf = .*\n)+)', source)
        texts = re.findall(r'BlockOf = (?:BlockOf & "\|" & )?"(.*)"\n', lines)
        cells = [text.replace('""', '"').split("~") for text in texts]
        assert [label for _, label, _ in cells] == [one.label for one in rows]
        assert [float(value) if kind == "number" else value for kind, _, value in cells] == [one.value for one in rows]
        assert not any("|" in text for text in texts)


# --- versions


def test_the_add_in_asks_for_the_version_that_computes(monkeypatch):
    monkeypatch.setattr(xlwings_functions, "_stale", [])
    card = [["model", "Llama3-8B"], ["accelerator", "H100-SXM-80GB"], ["num accelerators", 8.0]]
    assert xlwings_functions.addin_task("version", __version__) == ""
    before = xlwings_functions.XLPERF_CHECK(card)
    words = xlwings_functions.addin_task("version", "0.0.1")
    assert words == f"The add-in is of xlperf 0.0.1 and xlperf {__version__} computes: run xlperf install excel"
    assert xlwings_functions.XLPERF_CHECK(card) == f"{before}; {words}"
    told = xlwings_functions.addin_task("update", __version__)
    assert told.startswith(f"xlperf {__version__} computes") and "-m xlperf install excel --update" in told


def test_the_buttons_guide_and_report_name_a_workbook(monkeypatch, tmp_path):
    assert zipfile.is_zipfile(xlwings_functions.addin_task("guide", ""))
    asked = []

    def report(command, **_):
        asked.append(command)
        (tmp_path / "my plans report.xlsx").write_bytes(b"PK")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", report)
    made = xlwings_functions.addin_task("report", str(tmp_path / "my plans.xlsx"))
    assert made == str(tmp_path / "my plans report.xlsx")
    assert asked == [[sys.executable, "-P", "-m", "xlperf", "report", str(tmp_path / "my plans.xlsx"), "-o", made]]


def test_a_report_that_fails_is_the_line_of_the_command(tmp_path):
    (tmp_path / "empty.xlsx").write_bytes(b"no zip")
    words = xlwings_functions.addin_task("report", str(tmp_path / "empty.xlsx"))
    assert words.startswith("empty.xlsx: is no .xlsx workbook") and "\n" not in words


@pytest.mark.parametrize("host", ["excel", "libreoffice"])
def test_one_command_updates_package_and_add_in(host, monkeypatch, capsys):
    asked, codes = [], [0, 7]

    def done(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, codes[len(asked) - 1])

    monkeypatch.setattr(subprocess, "run", done)
    assert run(["install", host, "--update"]) == 7
    assert asked == [
        [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "xlperf"],
        [sys.executable, "-m", "xlperf", "install", host],
    ]
    asked.clear()
    codes[0] = 1
    assert run(["install", host, "--update"]) == 2 and len(asked) == 1
    assert capsys.readouterr().err.endswith(f"update it with what installed it, then run: xlperf install {host}\n")


@pytest.mark.parametrize("words", [["lite", "folder"], ["completion"], ["excel", "--output", "x.xlam"]])
def test_update_is_for_add_ins_of_this_machine(words, capsys):
    assert run(["install", *words, "--update"]) == 2
    assert "--update goes with libreoffice or excel alone" in capsys.readouterr().err
