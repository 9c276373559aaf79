"""What the extension of LibreOffice is made of, how it is installed, and the names in saved files."""

from __future__ import annotations

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
import zipfile

import openpyxl
import pytest
from libreoffice_office import Office

import xlperf
from xlperf.addin import libreoffice
from xlperf.addin.client import stale_words
from xlperf.addin.functions import functions
from xlperf.addin.host import make_portable, portable_formulas
from xlperf.addin.libreoffice import extension, host_environment, install, uninstall
from xlperf.base.errors import HostError
from xlperf.cli import run

# --- what the extension is made of


def test_the_extension_is_the_same_bytes_each_time():
    assert extension() == extension()


def test_the_extension_is_generated_from_the_registry(tmp_path):
    path = tmp_path / "xlperf.oxt"
    path.write_bytes(extension(["/python", "-m", "worker"], time_limit=7.0))
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    configuration = json.loads(parts["functions.json"])
    assert configuration["command"] == ["/python", "-m", "worker"]
    assert configuration["time_limit"] == 7.0
    assert list(configuration["functions"]) == list(functions())
    for name in functions():
        assert f" {name.removeprefix('XLPERF_')}(" in parts["xlperf.idl"]
    for name in ("CalcAddIns.xcu", "Jobs.xcu", "description.xml", "META-INF/manifest.xml"):
        ElementTree.fromstring(parts[name])
    listed = re.findall(r'full-path="([^"]+)"', parts["META-INF/manifest.xml"])
    assert set(listed) < set(parts)
    for name, text in parts.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
            assert "numpy" not in re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)


def test_an_add_in_of_another_version_says_so(driven, monkeypatch, tmp_path):
    monkeypatch.setattr(libreoffice, "__version__", "0.0.1")
    book = openpyxl.Workbook()
    for row in (("model", "Llama3-8B"), ("accelerator", "H100-SXM-80GB"), ("num accelerators", 8)):
        book.active.append(row)
    book.active["D1"], book.active["D2"] = "=XLPERF_CHECK(A1:B3)", "=XLPERF_FITS(A1:B3)"
    book.save(tmp_path / "book.xlsx")
    office = Office(tmp_path)
    install(office.options)
    office.start()
    try:
        office.open(tmp_path / "book.xlsx")
        office("recalculate")
        words, fits = (office.value("Sheet", cell) for cell in ("D1", "D2"))
    finally:
        office.end()
    assert words.endswith(f"; {stale_words('0.0.1', xlperf.__version__, 'libreoffice')}") and fits == 0.0


def test_a_function_that_returns_a_block_says_which_range_to_select():
    registry = [functions()[name] for name in ("XLPERF_TRAINING", "XLPERF_EXPLAIN", "XLPERF_STEP_TIME")]
    texts = re.findall(r'oor:name="Description"><value xml:lang="en-US">([^<]*)', libreoffice.wizard_texts(registry))
    said = [text for text in texts if "Ctrl+Shift+Enter" in text]
    assert [text.partition(" Select a range")[0] for text in said] == [function.doc for function in registry[:2]]


# --- names in saved files


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<f>XLPERF.MFU(A1)</f>", "<f>XLPERF_MFU(A1)</f>"),
        ('<f a="b">1+xlperf.step_time(A1)*XLPERF.MFU(B1)</f>', '<f a="b">1+XLPERF_STEP_TIME(A1)*XLPERF_MFU(B1)</f>'),
        ("<f>XLPERF.STEP_TIME_LOW(A1)</f>", "<f>XLPERF_STEP_TIME_LOW(A1)</f>"),
        ("<x:f>XLPERF.MFU(A1)</x:f>", "<x:f>XLPERF_MFU(A1)</x:f>"),
        ('<definedName name="a">XLPERF.MFU(A1)</definedName>', '<definedName name="a">XLPERF_MFU(A1)</definedName>'),
        ("<f>LEN(&quot;XLPERF.MFU(&quot;)+XLPERF.MFU(A1)</f>", "<f>LEN(&quot;XLPERF.MFU(&quot;)+XLPERF_MFU(A1)</f>"),
        ("<f>'XLPERF.MFU('!A1</f>", None),
        ("<t>XLPERF.MFU(A1)</t>", None),
        ("<v>XLPERF.MFU(A1)</v>", None),
        ("<f>MYXLPERF.MFU(A1)</f>", None),
        ("<f>XLPERF.NONSENSE(A1)</f>", None),
        ("<f/><v>1</v><t>XLPERF.MFU(A1)</t>", None),
    ],
)  # fmt: skip
def test_dotted_names_become_portable_in_formulas_only(before, after):
    assert portable_formulas(before.encode(), functions()).decode() == (after or before)


def test_a_saved_file_is_rewritten_whole_and_keeps_its_other_parts_and_its_date(tmp_path):
    path = tmp_path / "saved.xlsx"
    parts = {
        "xl/worksheets/sheet1.xml": b"<c><f>XLPERF.MFU(A1)</f></c>",
        "xl/sharedStrings.xml": b"<f>XLPERF.MFU(A1)</f>",
        "xl/media/image1.png": bytes(range(256)),
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    os.chmod(path, 0o640)
    assert make_portable(str(path), functions()) is True
    status = path.stat()
    assert status.st_mtime == 1_000_000_000
    assert status.st_mode & 0o777 == 0o640 or os.name == "nt"
    with zipfile.ZipFile(path) as archive:
        saved = {name: archive.read(name) for name in archive.namelist()}
    assert saved == {**parts, "xl/worksheets/sheet1.xml": b"<c><f>XLPERF_MFU(A1)</f></c>"}
    assert list(tmp_path.iterdir()) == [path]
    content = path.read_bytes()
    assert make_portable(str(path), functions()) is False
    assert path.read_bytes() == content


# --- installing

shell_scripts = pytest.mark.skipif(os.name == "nt", reason="the stand-in for unopkg is a shell script")


def test_unknown_host(capsys):
    assert run(["install", "libreofice"]) == 2
    assert "is not one of 'libreoffice', 'excel', 'office', 'lite'" in capsys.readouterr().err


def test_without_libreoffice(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(libreoffice, "_places", list)
    with pytest.raises(HostError, match="LibreOffice is not found"):
        install()


@shell_scripts
@pytest.mark.parametrize(
    ("user", "caller", "words"),
    [
        (1000, "", "this user (home /srv/ann)"),
        (0, "", "all users of this machine, as root runs this (home /srv/ann),"),
        (0, "ann", "all users of this machine, as root runs this (home /srv/ann; without sudo it is for ann alone),"),
    ],
)
def test_for_whom_it_is_installed_is_said(monkeypatch, tmp_path, user, caller, words):
    program = tmp_path / "unopkg"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("HOME", "/srv/ann")
    monkeypatch.setenv("SUDO_USER", caller)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert install().startswith(f"xlperf is installed in LibreOffice for {words} and computes with {sys.executable};")
    assert ("--shared" in (tmp_path / "asked").read_text().split()) == (user == 0)


@shell_scripts
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ERROR: There is no such extension deployed: org.xlperf.addin", "^xlperf is not installed in LibreOffice$"),
        ("unopkg cannot be started. The lock file indicates it is already running.", "^LibreOffice is running; close"),
        ("ERROR: disk full", "^LibreOffice refused: ERROR: disk full$"),
    ],
)
def test_what_unopkg_says_in_words(monkeypatch, tmp_path, said, words):
    program = tmp_path / "unopkg"
    program.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    with pytest.raises(HostError, match=words):
        uninstall()


@shell_scripts
@pytest.mark.parametrize("crashes", [1, 2, 3])
def test_an_extension_manager_that_crashes_is_run_again(monkeypatch, tmp_path, crashes):
    program, runs = tmp_path / "unopkg", tmp_path / "runs"
    program.write_text(f"#!/bin/sh\necho x >> {runs}\n[ $(wc -l < {runs}) -gt {crashes} ] || kill -SEGV $$\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    if crashes < 3:
        assert "no longer" in uninstall()
    else:
        with pytest.raises(HostError, match=r"^LibreOffice refused"):
            uninstall()
    assert len(runs.read_text().split()) == min(crashes + 1, 3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LibreOffice brings its own Python elsewhere")
def test_libreoffice_does_not_meet_a_virtual_environment(monkeypatch, tmp_path):
    (tmp_path / "python3").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    environment = host_environment()
    assert environment["PATH"] == f"/usr/bin{os.pathsep}/bin"
    assert "PYTHONPATH" not in environment
