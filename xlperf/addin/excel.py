"""The Excel add-in ``xlperf.xlam`` for Windows: worksheet functions, a tab of the ribbon, installation.

It is built on the user's machine from the add-in file of the installed xlwings, with our VBA module made from the
registry. Settings and paths come from the add-in alone, so that no workbook can bring code along.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path, PureWindowsPath
from xml.sax.saxutils import escape, unescape

from xlperf import __version__
from xlperf.addin.functions import Function, Row, archive, blocks, functions, glue
from xlperf.addin.vba_project import Project, VbaError
from xlperf.base.errors import Fault, HostError, InputError
from xlperf.base.files import replaced

NAME = "xlperf.xlam"
MODULE = "xlperf_functions"
SERVER_MODULE = "xlperf.addin.xlwings_functions"
BASE_FILE = "quickstart_addin.xlam"
_PROJECT, _SETTINGS_PART = "xl/vbaProject.bin", "xl/worksheets/sheet1.xml"
_BOOK, _CORE = "xl/workbook.xml", "docProps/core.xml"
_RELATIONSHIPS, _RIBBON = "_rels/.rels", "customUI/customUI14.xml"
_RIBBON_KIND = "http://schemas.microsoft.com/office/2007/relationships/ui/extensibility"
_SUMMARY = "Performance, memory and cost of training and serving large language models: the XLPERF_ functions."
# Changes of the module of xlwings.
_CHANGES = (
    ('PROJECT_NAME As String = "myaddin"', 'PROJECT_NAME As String = "xlperf"'),
    ("ActiveWorkbook", "ThisWorkbook"),  # settings and paths of the add-in alone: one process for all workbooks
    (' -B -c ""', ' -B -P -c ""'),  # nothing from the current folder
)
_BAS_NOTES = """\
' Where a company lets no add-in file in, the functions work in one workbook that you save with macros (.xlsm):
' 1. In Excel press Alt+F11; File > Import File: this file.
' 2. File > Import File: {xlwings}
' 3. Add a sheet named xlwings.conf; A1: Interpreter_Win, B1: {python}
' 4. On that sheet A2: ADD_WORKBOOK_TO_PYTHONPATH, B2: false
' 5. Save as .xlsm, outside folders that others write to.
' 6. Enter =XLPERF_DIE_YIELD(814, 0.1) in a cell: it shows 0.4572.
"""


# --- the VBA module


def vba_module(registry: Iterable[Function]) -> str:
    """Our module of VBA: shared helpers, buttons of the ribbon, a wrapper per function, and texts of the wizard."""
    known = list(registry)
    helpers = glue("excel.bas") + "\n" + glue("ribbon.bas")
    helpers = helpers.replace("SERVER_MODULE", SERVER_MODULE).replace("VERSION_OF_PACKAGE", __version__)
    head = f'Attribute VB_Name = "{MODULE}"\n{helpers}'
    return "\n".join([head, _block_texts(), *map(_wrapper, known), _argument_texts(known)])


def _block_texts() -> str:
    """The VBA function that gives a block as one text: rows between bars, cells between tildes."""
    lines = ["Private Function BlockOf(ByVal Name As String) As String", "    Select Case Name"]
    for name, rows in blocks().items():
        lines.append(f'        Case "{name}"')
        for place, row in enumerate(rows):
            start = 'BlockOf & "|" & ' if place else ""
            lines.append(f"            BlockOf = {start}{_text(_line(row))}")
    return "\n".join([*lines, "    End Select", "End Function", ""])


def _line(row: Row) -> str:
    kind = row.kind if row.kind != "input" else "number" if isinstance(row.value, float) else "text"
    value = f"{row.value:.15g}" if isinstance(row.value, float) else row.value
    return f"{kind}~{row.label}~{value}"


def _wrapper(function: Function) -> str:
    name = function.name
    shown = ", ".join(
        f"ParamArray {argument.name}() As Variant"
        if argument.repeated
        else f"{'Optional ' * argument.optional}{argument.name} As Variant"
        for argument in function.arguments
    )
    lines = [
        f"Public Function {name}({shown}) As Variant",
        f"Attribute {name}.VB_Description = {_text(function.doc)}",
        f'Attribute {name}.VB_ProcData.VB_Invoke_Func = " \\n14"',
    ]
    if function.arguments[-1].repeated:
        lines += [
            "    Dim Given As Variant",
            f"    Given = {function.arguments[-1].name}",
            f'    {name} = Computed("{name}", CellsOfEach(Given))',
        ]
    else:
        given = ", ".join(f"CellsOf({argument.name})" for argument in function.arguments)
        if function.is_per_plan:
            given += "".join(f", PlaceOf({function.arguments[place].name})" for place in (0, -1))
        lines.append(f'    {name} = Computed("{name}", Array({given}))')
    return "\n".join([*lines, "End Function", ""])


def _argument_texts(registry: Sequence[Function]) -> str:
    """The VBA procedure that Excel runs on opening: categories and texts of arguments, once per list of arguments."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for function in registry:
        texts = (function.category, *(argument.doc for argument in function.arguments))
        groups.setdefault(texts, []).append(function.name)
    lines = ["Public Sub Auto_Open()"]
    for (category, *known), names in groups.items():
        listed = ", _\n        ".join(_text(text) for text in known)
        for start in range(0, len(names), 20):  # a line of VBA holds 1023 characters
            lines.append(
                f'    Describe "{category}", "{" ".join(names[start : start + 20])}", Array( _\n        {listed})'
            )
    return "\n".join([*lines, "End Sub", ""])


def _text(words: str) -> str:
    """A text literal of VBA: one line in the Windows code page, 255 characters as Excel shows them."""
    plain = words.encode("cp1252", "replace").decode("cp1252").replace("\n", " ")[:255]
    return '"' + plain.replace('"', '""') + '"'


# --- the add-in file


def addin(python: str | None = None) -> bytes:
    """The add-in as the bytes of an .xlam file for the interpreter ``python``; equal input gives equal bytes."""
    base = _xlwings_folder() / BASE_FILE
    try:
        with zipfile.ZipFile(base) as package:
            parts = {name: package.read(name) for name in package.namelist()}
        project = Project.read(parts[_PROJECT])
        project.modules["xlwings"].source = _changed(project.modules["xlwings"].source)
        book, sheet, core = (parts[name].decode("utf-8") for name in (_BOOK, _SETTINGS_PART, _CORE))
    except (OSError, KeyError, VbaError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise HostError(
            f"{base}: the add-in file of xlwings {version('xlwings')} is not the one that xlperf knows ({error}); "
            "pip install xlwings==0.37.8"
        ) from None
    project.name = "xlperf"
    if "Module1" in project.modules:
        project.remove("Module1")
    project.add(MODULE, vba_module(functions().values()))
    parts[_PROJECT] = project.written()
    parts[_RIBBON] = glue("ribbon.xml").encode()
    related = f'<Relationship Id="rIdRibbon" Type="{_RIBBON_KIND}" Target="{_RIBBON}"/></Relationships>'
    parts[_RELATIONSHIPS] = parts[_RELATIONSHIPS].decode().replace("</Relationships>", related).encode()
    settings = {
        "Interpreter_Win": python or sys.executable,
        "UDF Modules": SERVER_MODULE,
        "ADD_WORKBOOK_TO_PYTHONPATH": "false",
        "Built by": f"xlperf {__version__}, xlwings {version('xlwings')}",
    }
    rows = "".join(
        f'<row r="{number}">{_cell(f"A{number}", key)}{_cell(f"B{number}", value)}</row>'
        for number, (key, value) in enumerate(settings.items(), 1)
    )
    book = re.sub(r"<mc:AlternateContent.*?</mc:AlternateContent>", "", book, flags=re.DOTALL)
    parts[_BOOK] = book.replace('name="_myaddin.conf"', 'name="xlperf.conf"').encode()
    parts[_SETTINGS_PART] = re.sub(
        r"<sheetData>.*</sheetData>", lambda _: f"<sheetData>{rows}</sheetData>", sheet, flags=re.DOTALL
    ).encode()
    core = re.sub(r"<dc:(title|description)\s*/>|<dc:(title|description)>[^<]*</dc:\2>", "", core)
    own = f"<dc:title>xlperf</dc:title><dc:description>{escape(_SUMMARY)}</dc:description></cp:coreProperties>"
    parts[_CORE] = core.replace("</cp:coreProperties>", own).encode()
    return archive(parts)


def _xlwings_folder() -> Path:
    spec = importlib.util.find_spec("xlwings")  # not imported: that takes half a second
    if spec is None or spec.origin is None:
        raise HostError("xlwings is not installed: pip install xlwings")
    return Path(spec.origin).parent


def _changed(source: str) -> str:
    for old, new in _CHANGES:
        if old not in source:
            raise VbaError(f"no {old.strip()} in its module")
        source = source.replace(old, new)
    return source


def _cell(place: str, text: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{escape(text)}</t></is></c>'


def bas_text(python: str | None = None) -> str:
    """Our module as a text file to import by hand, with the instruction at its head."""
    first, _, rest = vba_module(functions().values()).partition("\n")
    notes = _BAS_NOTES.format(xlwings=_xlwings_folder() / "xlwings.bas", python=python or sys.executable)
    return f"{first}\n{notes}{rest}"


def write(path: str, python: str | None = None) -> str:
    """Build the add-in, or its module as .bas, for the interpreter ``python``; returns a report in one line."""
    if python is None and sys.platform != "win32":
        problem = "runs in Excel for Windows, where this interpreter is not; name the one there: --python PATH"
        raise InputError(Fault(path, problem))
    text = Path(path).suffix.lower() == ".bas"
    content = bas_text(python).replace("\n", "\r\n").encode("cp1252", "replace") if text else addin(python)
    with replaced(path) as part:
        part.write_bytes(content)
    if text:
        return f"{path}: its first lines say how to import it"
    return f"{path}: {len(functions())} functions, computed with {python or sys.executable}"


# --- installation


def startup_folder() -> Path:
    """Folder with the add-ins that Excel for Windows opens at its start. Raises HostError on other systems."""
    if sys.platform != "win32":
        raise HostError(
            "add-in files of this kind run in Excel for Windows only: xlperf install excel --output FILE builds one "
            "for such a machine; for Excel on a Mac or on the web: xlperf install lite FOLDER"
        )
    return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "Microsoft" / "Excel" / "XLSTART"


def install() -> str:
    """Build the add-in into Excel's start-up folder; returns a report in one line. Raises HostError."""
    path = startup_folder() / NAME
    content = addin()
    if _content(path) == content:
        return f"xlperf is installed in Excel already and up to date: {path}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as part:
            part.write_bytes(content)
    except PermissionError:
        raise HostError(
            f"{path} cannot be written: close Excel and run this again; without the right to write there: "
            "xlperf install excel --output xlperf.bas"
        ) from None
    return f"xlperf is installed in Excel for this user and computes with {sys.executable}; restart Excel if it is open"


def uninstall() -> str:
    """Remove the add-in; result and errors as in :func:`install`."""
    path = startup_folder() / NAME
    try:
        path.unlink()
    except FileNotFoundError:
        raise HostError("xlperf is not installed in Excel") from None
    except PermissionError:
        raise HostError(f"{path} cannot be removed: close Excel and run this again") from None
    return "xlperf is no longer installed in Excel; restart Excel if it is open"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# --- what is installed


def check(path: str | None = None) -> tuple[list[str], bool]:
    """Findings on an add-in file, by default the installed one, a line each, and whether nothing is wrong."""
    file = Path(path) if path else startup_folder() / NAME
    if not file.is_file():
        return [f"{file}: not there; run: xlperf install excel"], False
    try:
        with zipfile.ZipFile(file) as package:
            modules = Project.read(package.read(_PROJECT)).modules
            texts = [unescape(text) for text in re.findall(r"<t>(.*?)</t>", package.read(_SETTINGS_PART).decode())]
            settings = dict(zip(texts[::2], texts[1::2], strict=False))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        return [f"{file}: no add-in of xlperf ({error}); run: xlperf install excel"], False
    built = settings.get("Built by", "an older xlperf")
    python = settings.get("Interpreter_Win", "")
    own = modules[MODULE].source if MODULE in modules else ""
    names = re.findall(r"(?m)^Public Function (XLPERF\w*)", own)
    lines = [f"{file}: {len(names)} functions, built by {built}", f"computed with {python}"]
    wrong = []
    if _content(file) != addin(python):
        wrong.append(
            f"not what xlperf {__version__} with xlwings {version('xlwings')} builds: it is of another version or was "
            "changed; run: xlperf install excel"
        )
    wrong += _interpreter_faults(python, built)
    if sys.platform == "win32" and importlib.util.find_spec("win32com") is None:
        wrong.append("Python cannot talk to Excel: pip install pywin32")
    wrong += _policy_faults()
    return [*lines, *(f"wrong: {words}" for words in wrong), *([] if wrong else ["nothing is wrong"])], not wrong


def _interpreter_faults(python: str, built: str) -> list[str]:
    """Faults of the interpreter and of the libraries of xlwings beside it."""
    if not Path(python).is_file():
        foreign = sys.platform != "win32" and PureWindowsPath(python).is_absolute()
        return [] if foreign else [f"there is no {python}; run xlperf install excel in the environment to use"]
    if sys.platform != "win32":
        return [f"{python} is not on Windows: give the interpreter of that machine with --python"]
    used = built.rpartition(" ")[2]
    folders = Path(python).parents[:2]
    return [
        f"no xlwings{bits}-{used}.dll in {folders[0]} or {folders[1]}, which Excel of {bits} bits loads; "
        "run: pip install --force-reinstall xlwings"
        for bits in (64, 32)
        if not any((folder / f"xlwings{bits}-{used}.dll").is_file() for folder in folders)
    ]


def _policy_faults() -> list[str]:
    """Whether an administrator or the user has macros turned off."""
    if sys.platform != "win32":
        return []
    import winreg

    for root in ("Software\\Policies\\Microsoft\\Office", "Software\\Microsoft\\Office"):
        try:
            with winreg.OpenKey(winreg.HKEY_CURRENT_USER, f"{root}\\16.0\\Excel\\Security") as key:
                setting, _ = winreg.QueryValueEx(key, "VBAWarnings")
        except OSError:
            continue
        if setting in (3, 4):
            which = "without asking" if setting == 4 else "unless signed"
            return [
                f"Excel is set to turn macros off {which}; where trusted locations are barred too, nothing runs: "
                "use xlwings Lite (xlperf install lite FOLDER)"
            ]
    return []
