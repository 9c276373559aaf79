"""The numbers and pictures of the README, made anew: ``python tests/support/readme.py``.

The answer below each command of the three questions is printed by the command; the pictures are the pages of the front
sheets as LibreOffice prints them.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pypdfium2
from places import ROOT

from xlperf.base import resources
from xlperf.cli import run

README = ROOT / "README.md"
PICTURES = {"serve": "What does it take to serve", "train": "How long does it train", "compare": "Which of two plans"}
"""Beginning of the page of the printed workbook by the name of the picture."""
_FIRST_PAGES = 12
_SCALE = 1.62
"""Pixels of a point, so that a front sheet is some 1,250 pixels wide."""
_BORDER = 12
_ENDS = {"serve": " with (?=SGLang|vLLM|TensorRT)", "train": ";", "chip": ", ", "fleet": ", "}
"""Where the README ends an answer, as a pattern."""
_LINE = re.compile(r"^(xlperf (serve|train|chip|fleet) (.+))\n# \2: .*$", re.MULTILINE)


def answer(kind: str, words: str) -> str:
    """What a command answers, as far as the README repeats it: its first clauses."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = run([kind, *shlex.split(words, comments=True)])
    assert code == 0, shown.getvalue()
    return repeated(kind, shown.getvalue())


def repeated(kind: str, printed_lines: str) -> str:
    """What the README repeats of the output of a command: its first clauses."""
    return re.split(_ENDS[kind], printed_lines.split("\n")[0])[0]


def in_guide(command: str) -> str:
    """The first line that a page of the guide shows below a command, which a test prints anew; "" if none has it."""
    pages = (path.read_text(encoding="utf-8") for path in sorted(resources.table("guide").glob("*.md")))
    shown = re.search(rf"^\$ {re.escape(command)}\n(.+)$", "\n".join(pages), re.MULTILINE)
    return shown[1] if shown else ""


def with_answers(text: str, answers: Mapping[str, str]) -> str:
    """The text of the README with other answers below its commands.

    ``answers``: by command.
    """
    return _LINE.sub(lambda found: f"{found[1]}\n# {found[2]}: {answers[found[2]]}", text)


def commands(text: str) -> dict[str, str]:
    """Arguments of the commands of the README by command."""
    return {found[2]: found[3] for found in _LINE.finditer(text)}


def printed(workbook: Path) -> dict[str, np.ndarray]:
    """The pictures as LibreOffice prints their pages, as :func:`drawn` gives them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [shutil.which("soffice") or "soffice", f"-env:UserInstallation={Path(folder, 'profile').as_uri()}"]
        kind = f'pdf:calc_pdf_Export:{{"PageRange":{{"type":"string","value":"1-{_FIRST_PAGES}"}}}}'
        command += ["--headless", "--norestore", "--convert-to", kind, "--outdir", folder, str(workbook)]
        subprocess.run(command, check=True, capture_output=True, timeout=1100)
        return {name: drawn(Path(folder, f"{workbook.stem}.pdf"), name) for name in PICTURES}


def drawn(pdf: Path, name: str) -> np.ndarray:
    """Pixels of the page of a picture without its white margins, (height, width, 3), 8 bits."""
    pages = iter(pypdfium2.PdfDocument(pdf.read_bytes()))
    page = next(page for page in pages if page.get_textpage().get_text_bounded().lstrip().startswith(PICTURES[name]))
    return _trimmed(page.render(scale=_SCALE, rev_byteorder=True).to_numpy()[..., :3])


def _trimmed(page: np.ndarray) -> np.ndarray:
    inked = np.argwhere((page < 255).any(axis=2))
    (top, left), (bottom, right) = inked.min(axis=0), inked.max(axis=0)
    first = np.maximum((top - _BORDER, left - _BORDER), 0)
    # five bits of a color are enough for a sheet, and half of the file
    cut = page[first[0] : bottom + _BORDER, first[1] : right + _BORDER]
    return np.asarray((cut.astype(np.int64) * 31 + 127) // 255 * 255 // 31, dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """A picture as a PNG file; ``pixels``: (height, width, 3), 8 bits."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 3)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def main() -> None:
    """Make the README and its pictures anew."""
    text = README.read_text(encoding="utf-8")
    asked = commands(text)
    README.write_text(with_answers(text, {kind: answer(kind, words) for kind, words in asked.items()}), "utf-8")
    for name, page in printed(ROOT / "workbooks" / "xlperf.xlsx").items():
        (ROOT / "workbooks" / f"{name}.png").write_bytes(png(page))


if __name__ == "__main__":
    main()
