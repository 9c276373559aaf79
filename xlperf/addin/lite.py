"""The functions in xlwings Lite (Excel on the web, on a Mac, on Windows): two texts to paste into its editor.

xlwings Lite runs Python inside Excel, without a process of its own; a workbook brings its code along. The engine runs
there unchanged.
"""

from __future__ import annotations

from pathlib import Path

from xlperf import __version__
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

    Parameters
    ----------
    folder : str
        Made where it does not exist.
    wheel : str, optional
        Address of the wheel of xlperf; by default the package index.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, text in (("main.py", MAIN), ("requirements.txt", requirements(wheel))):
        with replaced(place / name) as part:
            part.write_text(text, encoding="utf-8")
    return f"{place}: paste main.py and requirements.txt into the editor of xlwings Lite and restart its Python"
