"""Excel without a process of our own: the Office add-in as a folder of files, and texts for xlwings Lite.

Both run Python inside Excel (Pyodide), on Windows, on a Mac and on the web. Any web server can host the folder:
manifest and metadata from the registry, a page with scripts, and a wheel of the installed xlperf.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any
from uuid import NAMESPACE_URL, uuid5
from xml.sax.saxutils import quoteattr

import numpy as np

from xlperf import __version__
from xlperf.addin.functions import Function, archive, blocks, functions, glue
from xlperf.base import resources
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced

PYODIDE = "https://cdn.jsdelivr.net/pyodide/v0.27.7/full/"  # the Pyodide that tests run, unless another is given
SUMMARY = "Performance, memory and cost of training and serving large language models: functions of cells and a tab."
_PAGE = ("taskpane.html", "taskpane.js", "engine_worker.js")
_ICONS = (16, 32, 64, 80)
_CORE = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
_UNUSED = ("guide", "templates", "__pycache__")  # folders that nothing in a page reads
_LONG = ("search", "frontier", "diagnosis", "uncertainty", "sensitivity", "worth")
_CELLS = {"type": "any", "dimensionality": "matrix"}
_FORMS = ("serve", "train", "chip")
_GROUPS = {"Ask": _FORMS, "Plans": ("training", "serving", "search"), "Judge": ("diagnose", "check")}
_CHECK = "Check the selected plan"
_TIPS = {True: "Writes labels, values and formulas at the cursor.", False: "Says what is wrong, or what was assumed."}


# --- what the folder holds


def metadata() -> dict[str, Any]:
    """The functions as Excel registers them (functions.json): each argument and each result is a range of cells."""
    return {"functions": [_described(function) for function in functions().values()]}


def _described(function: Function) -> dict[str, Any]:
    return {
        "id": _identifier(function),
        "name": function.name,
        "description": function.doc,
        "parameters": [
            {"name": one.name, "description": one.doc, **_CELLS, "optional": one.optional, "repeating": one.repeated}
            for one in function.arguments
        ],
        "result": _CELLS,
        "options": {"cancelable": True},
    }


def _identifier(function: Function) -> str:
    """Letters and full stops, as Excel demands of an identifier.

    >>> _identifier(functions()["XLPERF_STEP_TIME"])
    'XLPERF.STEP.TIME'
    """
    return function.name.replace("_", ".")


def settings(pyodide: str, wheel: str) -> str:
    """What the script of the page reads (settings.js)."""
    known = {
        "version": __version__,
        "pyodide": pyodide,
        "wheel": wheel,
        "worker": "engine_worker.js",
        "functions": [
            {
                "id": _identifier(function),
                "name": function.name,
                "long": function.answer in _LONG or function.rows in _FORMS,
                "repeated": function.arguments[-1].repeated,
                "saysFaults": function.says_faults,
            }
            for function in functions().values()
        ],
        "blocks": {name: [asdict(row) for row in rows] for name, rows in blocks().items()},
    }
    return f"const SETTINGS = {json.dumps(known, indent=1)};\n"


def manifest(url: str) -> str:
    """The manifest of the add-in whose folder is at an https address; equal addresses have equal identifiers."""
    titles = {name: rows[0].label for name, rows in blocks().items()} | {"check": _CHECK}
    pane = _button("pane", _PANE)
    groups = {
        title: "".join(_button(name, _CALLS.format(name)) for name in names) + pane * (title == "Judge")
        for title, names in _GROUPS.items()
    }
    labels = {f"Group.{title}": title for title in groups} | {f"{name}.Label": one for name, one in titles.items()}
    tips = {f"{name}.Tip": _TIPS[name != "check"] for name in titles}
    return Template(glue("manifest.xml")).substitute(
        id=uuid5(NAMESPACE_URL, url),
        version=".".join(["1", *re.findall(r"\d+", __version__)[:3]]),
        summary=SUMMARY,
        url=url,
        origin="/".join(url.split("/")[:3]),
        groups="\n".join(_GROUP.format(title, buttons) for title, buttons in groups.items()),
        labels=_strings({**labels, "pane.Label": "Task pane"}),
        tips=_strings({**tips, "pane.Tip": "Shows the state of the engine and long calls, which it cancels."}),
    )


_ICON = "<Icon>{}</Icon>".format("".join(f'<bt:Image size="{n}" resid="Icon.{n}"/>' for n in (16, 32, 80)))
_GROUP = f'              <Group id="xlperf.Group.{{0}}"><Label resid="Group.{{0}}"/>{_ICON}{{1}}</Group>'
_CALLS = '<Action xsi:type="ExecuteFunction"><FunctionName>{}</FunctionName></Action>'
_PANE = (
    '<Action xsi:type="ShowTaskpane"><TaskpaneId>xlperf.Pane</TaskpaneId><SourceLocation resid="Page.Url"/></Action>'
)


def _button(name: str, action: str) -> str:
    label = f'<Label resid="{name}.Label"/>'
    tip = f'<Supertip><Title resid="{name}.Label"/><Description resid="{name}.Tip"/></Supertip>'
    return f'<Control xsi:type="Button" id="xlperf.{name}">{label}{tip}{_ICON}{action}</Control>'


def _strings(texts: dict[str, str]) -> str:
    return "\n".join(f'        <bt:String id="{name}" DefaultValue={quoteattr(text)}/>' for name, text in texts.items())


def icon(size: int) -> bytes:
    """A PNG of three bars that grow, on a rounded square."""
    across = (np.arange(size) + 0.5) / size
    x, y = np.meshgrid(across, across)
    beyond = [np.maximum(np.abs(along - 0.5) - 0.32, 0.0) for along in (x, y)]
    inside = beyond[0] * beyond[0] + beyond[1] * beyond[1] < 0.16 * 0.16
    bar = np.floor((x - 0.2) / 0.2)
    filled = (x > 0.2) & (x < 0.8) & ((x - 0.2) % 0.2 > 0.04) & (y < 0.8) & (y > 0.62 - 0.2 * bar)
    pixels = np.zeros((size, size, 4), dtype=np.uint8)
    pixels[inside] = (27, 39, 51, 255)
    pixels[inside & filled] = (122, 166, 214, 255)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    head = struct.pack(">IIBBBBB", size, size, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def wheel_of_package() -> bytes:
    """A wheel of the installed xlperf, with the workbook of its catalog; equal packages give equal bytes."""
    package, info = resources.table(""), f"xlperf-{__version__}.dist-info"
    parts = {f"xlperf/{path.relative_to(package).as_posix()}": path for path in _used(package)}
    parts["xlperf/workbooks/xlperf.xlsx"] = resources.workbook()
    contents = {name: path.read_bytes() for name, path in sorted(parts.items())}
    contents |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: xlperf\nVersion: {__version__}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: xlperf\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{info}/RECORD"
    return archive({**contents, record: "".join(f"{name},,\n" for name in (*contents, record)).encode()})


def _used(package: Path) -> Iterator[Path]:
    """Files of the package that an engine in a page may read."""
    for path in sorted(package.rglob("*")):
        folders = path.relative_to(package).parts[:-1]
        if path.is_file() and not {*folders} & {*_UNUSED} and folders[:1] != ("workbooks",) and path.suffix != ".pyc":
            yield path


# --- writing it


def write_office(folder: str, url: str, pyodide: str | None = None, wheel: str | None = None) -> str:
    """Write the folder of the Office add-in for an https address, with a copy of the folder ``pyodide``: next steps."""
    place, address = _folder(folder), url.rstrip("/")
    if not re.fullmatch(r"https://[\w.-]+(:\d+)?(/[\w.~%-]+)*", address, re.ASCII):
        raise InputError(Fault("--url", f'must be the https address where the folder will be, got "{url}"'))
    earlier = place / "manifest.xml"
    if any(place.glob("*")) and not (earlier.is_file() and b"<ProviderName>xlperf<" in earlier.read_bytes()):
        raise InputError(Fault(folder, "has files of another source; give an empty folder, or one of an earlier run"))
    source, copied = _pyodide(pyodide or PYODIDE)
    if wheel is not None and not (Path(wheel).is_file() and re.fullmatch(r"xlperf-[\w.+-]+\.whl", Path(wheel).name)):
        problem = f'must be a file such as xlperf-{__version__}-py3-none-any.whl, got "{wheel}"'
        raise InputError(Fault("--wheel", problem))
    name = f"xlperf-{__version__}-py3-none-any.whl" if wheel is None else Path(wheel).name
    contents: dict[str, bytes] = {
        "manifest.xml": manifest(address).encode(),
        "functions.json": json.dumps(metadata(), indent=1).encode(),
        "settings.js": settings(source, name).encode(),
        **{page: glue(page).encode() for page in _PAGE},
        **{f"icon-{size}.png": icon(size) for size in _ICONS},
        name: wheel_of_package() if wheel is None else Path(wheel).read_bytes(),
    }
    for old in place.glob("xlperf-*.whl"):
        old.unlink()
    _fill(place, contents)
    for file in copied:
        (place / "pyodide").mkdir(exist_ok=True)
        shutil.copyfile(file, place / "pyodide" / file.name)
    then = "then add manifest.xml to Excel (xlperf guide excel)"
    return f"{place}: put this folder on the web server at {address}, {then}"


def _folder(name: str) -> Path:
    if Path(name).exists() and not Path(name).is_dir():
        raise InputError(Fault(name, "is a file; give the name of a folder"))
    return Path(name)


def _fill(place: Path, contents: Mapping[str, bytes]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with replaced(place / name) as temporary:
            temporary.write_bytes(content)


def _pyodide(given: str) -> tuple[str, list[Path]]:
    """Where a page loads Pyodide from, and the files to copy for that."""
    if re.fullmatch(r"https://[\w.-]+(:\d+)?(/[\w.~%-]+)*/?", given, re.ASCII):
        return given.rstrip("/") + "/", []
    folder = Path(given)
    try:
        packages = json.loads((folder / "pyodide-lock.json").read_text(encoding="utf-8"))["packages"]
        needed, waiting = [folder / name for name in _CORE], ["numpy"]
        while waiting:
            package = packages[waiting.pop()]
            needed.append(folder / package["file_name"])
            waiting += package["depends"]
        missing = [path.name for path in needed if not path.is_file()]
    except (OSError, ValueError, KeyError, TypeError):
        missing = ["pyodide-lock.json with numpy"]
    if missing:
        problem = f"must be an https address or a folder of Pyodide; {given} has no {missing[0]}"
        raise InputError(Fault("--pyodide", problem))
    return "pyodide/", needed


# --- xlwings Lite


LITE_MAIN = """\
# The worksheet functions of xlperf. What XLPERF_CATALOG has read lives as long as the session:
# recalculate all cells after Python was restarted.

from xlperf.addin.xlwings_functions import *
"""


def requirements(wheel: str | None = None) -> str:
    """Packages that the workbook's Python needs: xlwings and the wheel of xlperf.

    >>> print(requirements("https://example.com/xlperf-0.1.0-py3-none-any.whl"))
    xlwings
    xlperf @ https://example.com/xlperf-0.1.0-py3-none-any.whl
    <BLANKLINE>
    """
    place = f"xlperf=={__version__}" if wheel is None else f"xlperf @ {wheel}"
    return f"xlwings\n{place}\n"


def write_lite(folder: str, wheel: str | None = None) -> str:
    """Write ``main.py`` and ``requirements.txt`` for xlwings Lite into a folder without others; next steps."""
    place, address = _folder(folder), None if wheel is None else _address(wheel)
    texts = {"main.py": LITE_MAIN, "requirements.txt": requirements(address)}
    starts = {"main.py": LITE_MAIN.encode(), "requirements.txt": b"xlwings\nxlperf"}
    foreign = [place / name for name in texts if (place / name).exists()]
    foreign = [path for path in foreign if not (path.is_file() and path.read_bytes().startswith(starts[path.name]))]
    if foreign:
        raise InputError([Fault(str(path), "is not of an earlier run; give a folder without it") for path in foreign])
    _fill(place, {name: text.encode() for name, text in texts.items()})
    return f"{place}: paste main.py and requirements.txt into the editor of xlwings Lite and restart its Python"


def _address(wheel: str) -> str:
    """The address of a wheel: https, or a file URL on this machine."""
    if re.fullmatch(r"https://[\w.-]+(:\d+)?/[!-~]*\.whl([?#][!-~]*)?", wheel, re.ASCII):
        return wheel
    with suppress(ValueError, OSError):
        written = wheel.removeprefix("file://").encode() if wheel.startswith("file:///") else b""
        named = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes.fromhex(match[1].decode()), written).decode()
        file = Path(named or wheel)
        if file.suffix == ".whl" and file.is_file():
            return file.resolve().as_uri()
    problem = f'must be the https address of a wheel, or a file that ends in .whl, got "{wheel}"'
    raise InputError(Fault("--wheel", problem))
