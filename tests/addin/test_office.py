"""The folder of the Office add-in: manifest, metadata, pictures, wheel; what is written, and what is refused."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import uuid
import xml.etree.ElementTree as ET
import zipfile

import pytest
from host_calls import CARD, example, plain
from matplotlib.image import imread

from xlperf import __version__
from xlperf.addin import worker
from xlperf.addin.functions import blocks, functions
from xlperf.addin.worker import Engine, Session
from xlperf.base.resources import workbook
from xlperf.cli.app import run

URL = "https://intranet.example:8443/tools/xl-perf"
APP = "{http://schemas.microsoft.com/office/appforoffice/1.1}"
OVER = "{http://schemas.microsoft.com/office/taskpaneappversionoverrides}"
BASIC = "{http://schemas.microsoft.com/office/officeappbasictypes/1.0}"
KIND = "{http://www.w3.org/2001/XMLSchema-instance}type"
# The documented order of children.
ORDER = {
    f"{APP}OfficeApp": "Id Version ProviderName DefaultLocale DisplayName Description IconUrl HighResolutionIconUrl "
    "SupportUrl AppDomains Hosts Requirements DefaultSettings Permissions VersionOverrides",
    f"{OVER}VersionOverrides": "Hosts Resources",
    f"{OVER}Host": "Runtimes AllFormFactors DesktopFormFactor",
    f"{OVER}DesktopFormFactor": "FunctionFile ExtensionPoint",
    f"{OVER}Control": "Label Supertip Icon Action",
    f"{OVER}Supertip": "Title Description",
    f"{OVER}Resources": "Images Urls ShortStrings LongStrings",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("office") / "site"
    assert run(["install", "office", str(folder), "--url", f"{URL}/"]) == 0
    return folder


@pytest.fixture(scope="module")
def manifest(site):
    return ET.fromstring((site / "manifest.xml").read_bytes())


@pytest.fixture(scope="module")
def texts(manifest):
    """Resources by their identifier."""
    kinds = ("Image", "Url", "String")
    named = [one for kind in kinds for one in manifest.iter(f"{BASIC}{kind}") if one.get("id")]
    found = [(one.get("id"), one.get("DefaultValue")) for one in named]
    assert len(dict(found)) == len(found)
    return dict(found)


# --- the manifest


def test_elements_stand_in_the_documented_order(manifest):
    seen = set()
    for element in manifest.iter():
        if element.tag in ORDER:
            seen.add(element.tag)
            assert [child.tag.partition("}")[2] for child in element] == ORDER[element.tag].split(), element.tag
    assert seen == set(ORDER)
    for group in manifest.iter(f"{OVER}Group"):
        names = [child.tag.removeprefix(OVER) for child in group]
        assert names[:2] == ["Label", "Icon"] and set(names[2:]) == {"Control"}
    (tab,) = manifest.iter(f"{OVER}CustomTab")
    assert [child.tag.removeprefix(OVER) for child in tab] == ["Group", "Group", "Group", "Label"]


def test_it_is_a_task_pane_with_functions_and_one_runtime(manifest):
    assert manifest.get(KIND) == "TaskPaneApp" and manifest.findtext(f"{APP}Permissions") == "ReadWriteDocument"
    assert str(uuid.UUID(manifest.findtext(f"{APP}Id"))) == manifest.findtext(f"{APP}Id")
    assert re.fullmatch(r"\d+(\.\d+){3}", manifest.findtext(f"{APP}Version"))
    assert [one.get("Name") for one in manifest.iter(f"{APP}Host")] == ["Workbook"]
    assert {one.get("Name") for one in manifest.iter(f"{APP}Set")} == {"SharedRuntime", "CustomFunctionsRuntime"}
    (runtime,) = manifest.iter(f"{OVER}Runtime")
    assert runtime.attrib == {"resid": "Page.Url", "lifetime": "long"}
    kinds = [one.get(KIND) for one in manifest.iter(f"{OVER}ExtensionPoint")]
    assert kinds == ["CustomFunctions", "PrimaryCommandSurface"]
    assert not [*manifest.iter(f"{OVER}Namespace")], "without one, functions have the names of every host"


def test_resources_are_all_there_and_within_the_limits(manifest, texts):
    used = {one.get("resid") for one in manifest.iter() if one.get("resid")}
    assert used == set(texts) and all(len(name) <= 32 for name in texts)
    for kind, longest in (("ShortStrings", 125), ("LongStrings", 250)):
        (group,) = manifest.iter(f"{BASIC}{kind}")
        assert all(0 < len(one.get("DefaultValue")) <= longest for one in group)
    assert len(manifest.find(f"{APP}Description").get("DefaultValue")) <= 250
    ids = [one.get("id") for one in manifest.iter() if one.get("id")]
    assert len(set(ids)) == len(ids)


def test_every_address_is_https_and_a_file_of_the_folder(manifest, texts, site):
    values = [one.get("DefaultValue") for one in manifest.iter() if one.tag.startswith(APP) and one.get("DefaultValue")]
    addresses = [text for text in [*values, *texts.values()] if "://" in text]
    assert len(addresses) == 10
    for address in addresses:
        assert address.startswith(f"{URL}/") and (site / address.removeprefix(f"{URL}/")).is_file()
    assert manifest.findtext(f"{APP}AppDomains/{APP}AppDomain") == "https://intranet.example:8443"


def test_buttons_are_actions_of_the_page(manifest):
    names = [one.text for one in manifest.iter(f"{OVER}FunctionName")]
    assert sorted(names) == sorted([*blocks(), "check"])
    assert {one.get(KIND) for one in manifest.iter(f"{OVER}Action")} == {"ExecuteFunction", "ShowTaskpane"}


def test_one_address_has_one_identifier(site, tmp_path):
    for url in (URL, "https://other.example"):
        assert run(["install", "office", str(tmp_path / "again"), "--url", url]) == 0
        same = (tmp_path / "again" / "manifest.xml").read_bytes() == (site / "manifest.xml").read_bytes()
        assert same == (url == URL)


# --- functions, pictures, settings


def test_metadata_follow_the_registry_and_the_documented_rules(site):
    known = json.loads((site / "functions.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in known["functions"]] == list(functions())
    assert len({one["id"] for one in known["functions"]}) == len(functions())
    for one, function in zip(known["functions"], functions().values(), strict=True):
        assert set(one) == {"id", "name", "description", "parameters", "result", "options"}
        assert re.fullmatch(r"[A-Z.]+", one["id"]) and re.fullmatch(r"[A-Z][A-Z_]{0,127}", one["name"])
        assert one["description"] == function.doc and one["options"] == {"cancelable": True}
        assert one["result"] == {"type": "any", "dimensionality": "matrix"}
        for place, (parameter, argument) in enumerate(zip(one["parameters"], function.arguments, strict=True), 1):
            assert parameter["name"] == argument.name and parameter["description"] == argument.doc
            assert parameter["type"] == "any" and parameter["dimensionality"] == "matrix"
            assert parameter["optional"] == argument.optional
            assert not parameter["repeating"] or place == len(one["parameters"])


@pytest.mark.parametrize("size", [16, 32, 64, 80])
def test_pictures_have_their_size_and_colors(site, size):
    content = (site / f"icon-{size}.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (size, size)
    pixels = imread(site / f"icon-{size}.png")
    assert pixels.shape == (size, size, 4) and len({tuple(pixel) for line in pixels.tolist() for pixel in line}) == 3


def test_the_page_reads_what_the_folder_has(site):
    settings = json.loads((site / "settings.js").read_text().removeprefix("const SETTINGS = ").rstrip(";\n"))
    assert settings["version"] == __version__ and settings["pyodide"].startswith("https://cdn.")
    assert (site / settings["wheel"]).is_file() and (site / settings["worker"]).is_file()
    assert [one["name"] for one in settings["functions"]] == list(functions())
    long = {one["name"] for one in settings["functions"] if one["long"]}
    assert {"XLPERF_SEARCH", "XLPERF_SERVE", "XLPERF_FRONTIER"} < long and "XLPERF" not in long
    page = (site / "taskpane.html").read_text()
    assert re.findall(r'<script src="([^"]+)"', page)[1:] == ["settings.js", "taskpane.js"]


# --- the wheel and the engine in it


def test_the_wheel_alone_answers(site, tmp_path):
    (wheel,) = site.glob("xlperf-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
        names = archive.namelist()
        record = archive.read(f"xlperf-{__version__}.dist-info/RECORD").decode()
        assert archive.read("xlperf/workbooks/xlperf.xlsx") == workbook().read_bytes()
    assert [line.partition(",")[0] for line in record.splitlines()] == names
    assert sum(len(name) for name in names if "__pycache__" in name or name.endswith(".pyc")) == 0
    asked = [{"id": 7, "function": name, "arguments": example(name)[1]} for name in ("XLPERF", "XLPERF_SERVE")]
    code = (
        "import sys, xlperf; from xlperf.addin.worker import __version__, answers\n"
        "print(xlperf.__file__, __version__); print(answers(sys.stdin.read()))\n"
        "print({'pandas', 'click', 'openpyxl', 'defusedxml', 'xlwings'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "wheel"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(asked), env=environment, cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    place, answer, others = done.stdout.splitlines()
    assert place == f"{tmp_path}/wheel/xlperf/__init__.py {__version__}"
    assert [one["rows"] for one in json.loads(answer)] == [
        Session().call(*example(name)) for name in ("XLPERF", "XLPERF_SERVE")
    ]
    assert others == "set()", "numpy is all that a page loads beside the wheel"


def test_plans_of_a_table_are_evaluated_together(monkeypatch):
    evaluated = []

    class Counting(Engine):
        def evaluate(self, rows, catalog, results=None):
            evaluated.append(len(rows))
            return super().evaluate(rows, catalog, results)

    session = Session(engine=Counting())
    monkeypatch.setattr(worker, "_session", lambda: session)
    header, row = map(list, zip(*CARD, strict=True))
    sizes = [8.0 * number for number in range(1, 41)]
    rows = [
        [size if name == "num accelerators" else cell for name, cell in zip(header, row, strict=True)] for size in sizes
    ]
    rows[5][0] = "no such model"
    calls = [
        {"id": number, "function": "XLPERF_MFU", "arguments": [[one], None, [header]]}
        for number, one in enumerate(rows)
    ]
    answered = json.loads(worker.answers(json.dumps(calls)))
    assert [one["id"] for one in answered] == list(range(40))
    assert evaluated == [40, 39, 1], "all, all but the faulty one, the faulty one alone"
    single = Session()
    assert [
        plain([[c["error"] if isinstance(c, dict) else c for c in line] for line in one["rows"]]) for one in answered
    ] == [plain(single.call("XLPERF_MFU", [[one], None, [header]])) for one in rows]


# --- writing


def pyodide_folder(folder):
    folder.mkdir()
    lock = {
        "packages": {
            "numpy": {"file_name": "numpy.whl", "depends": ["blas"]},
            "blas": {"file_name": "b.zip", "depends": []},
        }
    }
    names = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "numpy.whl", "b.zip", "other.whl")
    for name in names:
        (folder / name).write_text(name)
    (folder / "pyodide-lock.json").write_text(json.dumps(lock))
    return folder


def test_a_folder_of_pyodide_is_copied_as_far_as_needed(tmp_path):
    source = pyodide_folder(tmp_path / "pyodide")
    command = ["install", "office", str(tmp_path / "site"), "--url", URL, "--pyodide", str(source)]
    assert run(command) == run(command) == 0
    copied = {path.name for path in (tmp_path / "site" / "pyodide").iterdir()}
    assert copied == {path.name for path in source.iterdir()} - {"other.whl"}
    assert '"pyodide": "pyodide/"' in (tmp_path / "site" / "settings.js").read_text()


def test_a_wheel_and_a_pyodide_of_ones_own(tmp_path):
    wheel = tmp_path / "xlperf-9.9.9-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    command = ["install", "office", str(tmp_path / "site"), "--url", URL, "--pyodide", "https://a.example/p"]
    assert run(command) == 0
    assert run([*command, "--wheel", str(wheel)]) == 0
    (copied,) = (tmp_path / "site").glob("*.whl")
    assert copied.name == wheel.name and copied.read_bytes() == b"wheel"
    assert '"pyodide": "https://a.example/p/"' in (tmp_path / "site" / "settings.js").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--url", "http://a.example"], "--url: must be the https address where the folder will be"),
        (["--url", 'https://a.example/"x'], "--url: must be the https address"),
        (["--url", "https://a.example/x?y"], "--url: must be the https address"),
        (
            ["--url", URL, "--pyodide", "nowhere"],
            "--pyodide: must be an https address or a folder of Pyodide; nowhere has no",
        ),
        (["--url", URL, "--wheel", "x.whl"], "--wheel: must be a file such as xlperf-"),
        ([], "Say which folder and its address"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_written(options, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["install", "office", "site", *options]) == 2
    said = capsys.readouterr().err
    assert words.lower() in said.lower() and not list(tmp_path.iterdir())


def test_a_folder_of_somebody_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "index.html").write_text("mine")
    assert run(["install", "office", str(tmp_path), "--url", URL]) == 2
    assert "has files of another source" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    (tmp_path / "manifest.xml").write_text("<OfficeApp><ProviderName>another</ProviderName></OfficeApp>")
    assert run(["install", "office", str(tmp_path), "--url", URL]) == 2
    assert run(["install", "excel", "--url", URL]) == 2
