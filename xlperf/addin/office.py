"""Excel without a process of our own: the Office add-in as a folder of files, and texts for xlwings Lite.

Both run Python inside Excel (Pyodide), on Windows, on a Mac and on the web, with the engine unchanged.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from xlperf import __version__
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced

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
    """Write ``main.py`` and ``requirements.txt`` into a folder, for the package index or a wheel (https address or
    file); returns the next steps in one line. Nothing is written over files from another source.
    """
    place = Path(folder)
    address = None if wheel is None else _address(wheel)
    if place.exists() and not place.is_dir():
        raise InputError(Fault(folder, "is a file; give the name of a folder"))
    texts = {"main.py": LITE_MAIN, "requirements.txt": requirements(address)}
    starts = {"main.py": LITE_MAIN.encode(), "requirements.txt": b"xlwings\nxlperf"}
    foreign = [place / name for name in texts if (place / name).exists()]
    foreign = [path for path in foreign if not (path.is_file() and path.read_bytes().startswith(starts[path.name]))]
    if foreign:
        raise InputError([Fault(str(path), "is not of an earlier run; give a folder without it") for path in foreign])
    place.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with replaced(place / name) as part:
            part.write_text(text, encoding="utf-8")
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
