"""The functions in xlwings Lite (Excel on the web, on a Mac, on Windows): two texts to paste into its editor.

xlwings Lite runs Python inside Excel, without a process of its own; a workbook brings its code along. The engine runs
there unchanged.
"""

from __future__ import annotations

from pathlib import Path

from xlperf import __version__
from xlperf.base.errors import Fault, InputError
from xlperf.base.files import replaced

MAIN = """\
# The worksheet functions of xlperf. What XLPERF_CATALOG has read lives as long as the session:
# recalculate all cells after Python was restarted.

from xlperf.addin.xlwings_functions import *
"""


def requirements(wheel: str | None = None) -> str:
    """What the workbook's Python needs: xlwings and the wheel of xlperf.

    >>> print(requirements("https://example.com/xlperf-0.1.0-py3-none-any.whl"))
    xlwings
    xlperf @ https://example.com/xlperf-0.1.0-py3-none-any.whl
    <BLANKLINE>
    """
    place = f"xlperf=={__version__}" if wheel is None else f"xlperf @ {wheel}"
    return f"xlwings\n{place}\n"


def write(folder: str, wheel: str | None = None) -> str:
    """Write ``main.py`` and ``requirements.txt`` into a folder; what to do with them, in one line.

    ``folder``: made where it does not exist. ``wheel``: address of the wheel of xlperf; by default the package index.
    Raises InputError where FOLDER is a file, or holds files of these names that are not of an earlier run; nothing is
    written then.
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InputError(Fault(folder, "is a file; give the name of a folder"))
    texts = {"main.py": MAIN, "requirements.txt": requirements(wheel)}
    own = {"main.py": MAIN.encode(), "requirements.txt": b"xlwings\nxlperf"}
    foreign = [name for name in texts if (place / name).exists() and not _starts_with(place / name, own[name])]
    if foreign:
        raise InputError([Fault(str(place / name), "is not of an earlier run; give a folder without it")
                          for name in foreign])  # fmt: skip
    place.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with replaced(place / name) as part:
            part.write_text(text, encoding="utf-8")
    return f"{place}: paste main.py and requirements.txt into the editor of xlwings Lite and restart its Python"


def _starts_with(path: Path, start: bytes) -> bool:
    """Whether a file begins as one that this module wrote."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(start)) == start
