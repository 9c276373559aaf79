"""The add-in file of Excel: read back by other people's tools; its installation in a stand-in of Windows' folders."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import resource
import subprocess
import sys
import warnings
import zipfile
from importlib.metadata import version
from pathlib import Path

import openpyxl
import pytest
from antlr4 import CommonTokenStream, InputStream
from antlr4.atn.PredictionMode import PredictionMode
from antlr4.error.ErrorListener import ErrorListener
from antlr4_vba.vbaLexer import vbaLexer
from antlr4_vba.vbaParser import vbaParser
from pyopenvba import integrity

from xlperf.addin.excel import MODULE, SERVER_MODULE, addin, bas_text, install, uninstall, vba_module
from xlperf.addin.functions import functions
from xlperf.base.errors import HostError
from xlperf.cli.app import run

REAL_FIND = importlib.util.find_spec
PYTHON = r"C:\Users\Ann\xlperf env & more\Scripts\python.exe"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("excel") / "xlperf.xlam"
    path.write_bytes(addin(PYTHON))
    return path


@pytest.fixture(scope="module")
def macros(file):
    """The modules of the add-in as olevba reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that its parser library will no longer know one day
        from oletools.olevba import VBA_Parser
    return {
        name.partition(".")[0]: text.replace("\r\n", "\n") for *_, name, text in VBA_Parser(str(file)).extract_macros()
    }


# --- the file


def test_it_is_built_in_time_and_small(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "xlperf", "install", "excel", "--output", str(tmp_path / "x.xlam"), "--python", PYTHON],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30.0  # s of the processor, one or two
    assert (tmp_path / "x.xlam").stat().st_size < 200_000


def test_it_is_the_same_file_each_time(file):
    assert addin(PYTHON) == file.read_bytes()


def test_olevba_reads_our_module_back(macros):
    source = vba_module(functions().values())
    assert macros[MODULE].strip() == source.strip()
    for name, function in functions().items():
        (line,) = re.findall(rf"(?m)^Public Function {name}\((.*)\) As Variant$", source)
        assert [re.sub(r"Optional |ParamArray |\(\)| As Variant", "", part) for part in line.split(", ")] == [
            argument.name for argument in function.arguments
        ]
        assert f'Attribute {name}.VB_Description = "' in source
    assert all(len(line) < 1023 for line in source.splitlines())
    assert set(macros) == {"ThisWorkbook", "Dictionary", "xlwings", "Sheet2", MODULE}


def test_the_compound_file_is_sound(file):
    report = integrity.check_file(str(file))
    assert report.complete
    assert report.issues == ()


def test_settings_are_those_of_this_environment(file):
    packed = io.BytesIO()
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(packed, "w") as copy:
        for name in archive.namelist():  # openpyxl opens workbooks only
            copy.writestr(name, archive.read(name).replace(b"vnd.ms-excel.addin.", b"vnd.ms-excel.sheet."))
    book = openpyxl.load_workbook(packed)
    assert dict(book["xlperf.conf"].iter_rows(values_only=True)) == {
        "Interpreter_Win": PYTHON,
        "UDF Modules": SERVER_MODULE,
        "ADD_WORKBOOK_TO_PYTHONPATH": "false",
        "Built by": f"xlperf {version('xlperf')}, xlwings {version('xlwings')}",
    }
    assert book.properties.title == "xlperf"
    with zipfile.ZipFile(file) as archive:
        assert b"felix" not in archive.read("xl/workbook.xml")


def test_other_workbooks_have_no_say(macros):
    """One process for all workbooks, and neither settings nor code from beside them."""
    module = macros["xlwings"]
    assert "ActiveWorkbook" not in module
    assert f"xlwings64-{version('xlwings')}.dll" in module
    (tail,) = re.findall(r'tail = "(.*?)import sys', module)
    assert tail == ' -B -P -c ""'


def test_code_beside_a_workbook_does_not_run(tmp_path):
    """What the add-in starts: xlwings' preparation of the path with our settings, in the folder of a workbook."""
    (tmp_path / "defusedxml.py").write_text("print('code beside the workbook ran')\n")
    path = f"false;{tmp_path}/book.xlsx;{tmp_path}/book.xlsx;;;;"
    code = (
        f"import xlwings.utils; xlwings.utils.prepare_sys_path({path!r}); import {SERVER_MODULE}, sys; print(sys.path)"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "ran" not in done.stdout
    assert str(tmp_path) not in done.stdout


# --- the grammar of VBA


def faults_of(source: str) -> list[str]:
    """What a parser of VBA finds wrong: a fast one, and where it stops, one that looks at all of the source."""
    return parsed(source, PredictionMode.SLL) and parsed(source, PredictionMode.LL)


def parsed(source: str, mode: PredictionMode) -> list[str]:
    result: list[str] = []

    class Listener(ErrorListener):
        def syntaxError(self, recognizer, symbol, line, column, words, error):
            result.append(f"{line}: {words}")

    lexer = vbaLexer(InputStream('Attribute VB_Name = "m"\r\nOption Explicit\r\n' + source.replace("\n", "\r\n")))
    parser = vbaParser(CommonTokenStream(lexer))
    for part in (lexer, parser):
        part.removeErrorListeners()
        part.addErrorListener(Listener())
    parser._interp.predictionMode = mode
    parser.startRule()
    return result


def procedures(source: str) -> list[str]:
    return re.split(r"(?m)^(?=(?:Public|Private) (?:Function|Sub) )", source)[1:]


def test_helpers_and_a_wrapper_of_each_shape_are_vba():
    shapes = {tuple((one.optional, one.repeated) for one in known.arguments): known for known in functions().values()}
    assert {part[:60]: faults_of(part) for part in procedures(vba_module(shapes.values())) if faults_of(part)} == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [("Exit Function", "Exit Funktion"), ("Caller))", "Caller)"), ("    End If\nEnd Function", "End Function")],
    ids=["word", "bracket", "block"],
)
def test_the_parser_finds_planted_faults(old, new):
    source = next(part for part in procedures(vba_module(functions().values())) if old in part)
    assert faults_of(source) == []
    assert faults_of(source.replace(old, new, 1)) != []


def test_the_text_to_import_says_how():
    first, *notes = bas_text(PYTHON).splitlines()
    assert first == f'Attribute VB_Name = "{MODULE}"'
    assert [note[:4] for note in notes[1:7]] == [f"' {number}." for number in range(1, 7)]
    assert PYTHON in notes[3]
    assert notes[7:] == vba_module(functions().values()).splitlines()[1:]


# --- installing


@pytest.fixture
def windows(monkeypatch, tmp_path):
    """Folders of a Windows, with an interpreter that has xlwings' libraries beside it; its path is sys.executable."""
    python = tmp_path / "env" / "Scripts" / "python.exe"
    python.parent.mkdir(parents=True)
    python.touch()
    for bits in (32, 64):
        (python.parents[1] / f"xlwings{bits}-{version('xlwings')}.dll").touch()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("APPDATA", str(tmp_path / "AppData"))
    monkeypatch.setitem(sys.modules, "winreg", Registry())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: REAL_FIND("json" if name == "win32com" else name))
    return tmp_path / "AppData" / "Microsoft" / "Excel" / "XLSTART" / "xlperf.xlam"


class Registry:
    """Stand-in for winreg."""

    HKEY_CURRENT_USER = 0
    setting = None

    def OpenKey(self, _root, path):
        if self.setting is None or "Policies" not in path:
            raise FileNotFoundError(path)
        return io.StringIO()

    def QueryValueEx(self, _key, name):
        assert name == "VBAWarnings"
        return self.setting, 4


def test_it_is_put_where_excel_opens_it_and_taken_out(windows):
    assert "is installed in Excel for this user" in install()
    assert windows.read_bytes() == addin()
    stamp = os.stat(windows).st_mtime_ns
    assert "already" in install()
    assert os.stat(windows).st_mtime_ns == stamp
    assert "no longer" in uninstall()
    assert not windows.exists()
    with pytest.raises(HostError, match=r"^xlperf is not installed in Excel$"):
        uninstall()


def test_an_old_version_is_replaced(windows):
    windows.parent.mkdir(parents=True)
    windows.write_bytes(b"old")
    install()
    assert windows.read_bytes() == addin()


def test_check_finds_nothing_wrong(windows, capsys):
    install()
    assert run(["install", "excel", "--check"]) == 0
    said = capsys.readouterr().out
    assert f"{len(functions())} functions" in said
    assert said.endswith("nothing is wrong\n")
    assert run(["install", "excel", "--check", str(windows)]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("absent", "not there; run: xlperf install excel"),
        ("garbage", "no add-in of xlperf"),
        ("other version", "run: xlperf install excel"),
        ("no interpreter", "there is no "),
        ("no library", "xlwings64-"),
        ("no pywin32", "pip install pywin32"),
        ("policy", "turn macros off without asking"),
    ],
)
def test_check_says_what_is_wrong(windows, monkeypatch, capsys, what, words):
    if what != "absent":
        install()
    python = Path(sys.executable)
    if what == "garbage":
        windows.write_bytes(b"no zip")
    elif what == "other version":
        monkeypatch.setattr("xlperf.addin.excel.__version__", "99")
    elif what == "no interpreter":
        python.unlink()
    elif what == "no library":
        (python.parents[1] / f"xlwings64-{version('xlwings')}.dll").unlink()
    elif what == "no pywin32":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "win32com" else REAL_FIND(name))
    elif what == "policy":
        sys.modules["winreg"].setting = 4
    assert run(["install", "excel", "--check"]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if words in line]
    assert len(wrong) == 1


def test_elsewhere_one_line_says_what_can_be_done(capsys, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert run(["install", "excel"]) == 2
    assert "--output FILE" in capsys.readouterr().err


def test_an_xlwings_that_is_not_known_is_said(monkeypatch, tmp_path):
    (tmp_path / "quickstart_addin.xlam").write_bytes(b"PK")
    monkeypatch.setattr("xlperf.addin.excel._xlwings_folder", lambda: tmp_path)
    with pytest.raises(HostError, match=r"is not the one that xlperf knows .*; pip install xlwings=="):
        addin()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["libreoffice", "--output", "x.xlam"], "--output is for xlperf install excel"),
        (["excel", "folder"], "folder is for xlperf install lite"),
        (["lite"], "say which folder"),
        (["excel", "--python", "p"], "--python goes with --output"),
    ],
)
def test_what_does_not_go_together_is_said(arguments, words, capsys):
    assert run(["install", *arguments]) == 2
    assert words.lower() in capsys.readouterr().err.lower()


# --- xlwings Lite


def test_lite_is_two_texts_to_paste(tmp_path, capsys):
    wheel = "https://example.com/xlperf-0.1.0-py3-none-any.whl"
    assert run(["install", "lite", str(tmp_path / "new"), "--wheel", wheel]) == 0
    assert (tmp_path / "new" / "requirements.txt").read_text() == f"xlwings\nxlperf @ {wheel}\n"
    main = (tmp_path / "new" / "main.py").read_text()
    code = "import json, sys; exec(sys.stdin.read()); print(json.dumps([n for n in dir() if n.startswith('XLPERF')]))"
    done = subprocess.run([sys.executable, "-c", code], input=main, capture_output=True, text=True, check=True)
    assert sorted(json.loads(done.stdout)) == sorted(functions())


@pytest.mark.parametrize(
    "wheel",
    [
        "http://example.com/x.whl", "ftp://example.com/x.whl", "https://example.com/x.tar.gz", "https:///x.whl",
        "https://[::1/x.whl", "https://example.com/x.whl\nnumpy", "https://example.com/x y.whl", "xlperf", "none.whl",
        "file://host/x.whl", "", "git+https://example.com/x.whl",
    ],
)  # fmt: skip
def test_a_wheel_is_an_https_address_or_a_file(wheel, tmp_path, capsys):
    assert run(["install", "lite", str(tmp_path / "lite"), "--wheel", wheel]) == 2
    said = capsys.readouterr().err
    assert said.startswith("--wheel: must be the https address of a wheel, or a file that ends in .whl, got")
    assert said.count("\n") == 1 and not (tmp_path / "lite").exists()


def test_a_file_is_named_by_its_address(tmp_path):
    file = tmp_path / "my wheels" / "xlperf-0.1.0-py3-none-any.whl"
    file.parent.mkdir()
    file.touch()
    for wheel in (str(file), file.as_uri()):
        assert run(["install", "lite", str(tmp_path / "lite"), "--wheel", wheel]) == 0
        assert (tmp_path / "lite" / "requirements.txt").read_text() == f"xlwings\nxlperf @ {file.as_uri()}\n"


@pytest.mark.parametrize("name", ["x.xlam", "x.bas"])
def test_an_add_in_for_another_machine_needs_its_interpreter(name, tmp_path, capsys):
    assert run(["install", "excel", "--output", str(tmp_path / name)]) == 2
    words = "runs in Excel for Windows, where this interpreter is not; name the one there: --python PATH"
    assert capsys.readouterr().err == f"{tmp_path / name}: {words}\n"
    assert list(tmp_path.iterdir()) == []


def test_lite_takes_no_file_of_somebody_else(tmp_path, capsys):
    own = tmp_path / "requirements.txt"
    own.write_text("numpy\n")
    assert run(["install", "lite", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{own}: is not of an earlier run; give a folder without it\n"
    assert own.read_text() == "numpy\n" and not (tmp_path / "main.py").exists()
    assert run(["install", "lite", str(own)]) == 2
    own.unlink()
    assert run(["install", "lite", str(tmp_path)]) == 0
    assert run(["install", "lite", str(tmp_path), "--wheel", "https://example.com/w.whl"]) == 0
    assert "w.whl" in own.read_text()
