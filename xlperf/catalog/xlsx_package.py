"""Spreadsheet packages, opened with care: bounded in size, without document types, never trusting a header."""

from __future__ import annotations

import os
import posixpath
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO
from xml.parsers import expat

from xlperf.base.errors import Fault, InputError

PART_LIMIT = 256 * 2**20
TOTAL_LIMIT = 512 * 2**20
MAX_PARTS = 10_000
MOST_ELEMENTS = 14_000_000  # XML elements of one part: six million cells with values, and their rows
MOST_TIMES = 100  # how many times its size a large part may unpack to; sheets that people fill come to a tenth of this
LARGE_PART = 16 * 2**20
_COUNTED_PART = 4 * 2**20  # smaller ones cannot hold too many elements to read
_DIRECTORY_LIMIT = 4 * 2**20
_CHUNK = 2**20
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED = "is encrypted; save it without a password"

Start = Callable[[str, dict[str, str]], None]
End = Callable[[str], None]
Text = Callable[[str], None]


class _LocalNames(dict[str, str]):
    """Names of elements without their prefix, by the name as it is written."""

    def __missing__(self, name: str) -> str:
        return self.setdefault(name, name.rpartition(":")[2])


class Package:
    """The parts of an .xlsx or .ods file, of limited unpacked bytes and elements."""

    def __init__(
        self, path: str | os.PathLike[str], opendocument: bool = False, total_limit: int = TOTAL_LIMIT
    ) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self._left = total_limit
        _check_file(self.path)
        try:
            self._zip = zipfile.ZipFile(self.path)
            infos = self._zip.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError):
            raise self.damaged() from None
        self.parts = {info.filename.lstrip("/"): info for info in infos[:MAX_PARTS]}
        self._folded = {name.casefold(): name for name in self.parts}
        problem = _unreadable(self.parts, opendocument)
        if len(infos) > MAX_PARTS:
            problem = f"holds more than {MAX_PARTS:,} parts; xlperf does not open it"
        if problem:
            self.close()
            raise InputError(Fault(self.name, problem))

    def __enter__(self) -> Package:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._zip.close()

    def damaged(self, part: str = "") -> InputError:
        """Error for a file that cannot be understood."""
        where = f" ({part})" if part else ""
        return InputError(Fault(self.name, f"is damaged{where}; open it in Excel or LibreOffice and save it again"))

    def has(self, part: str) -> bool:
        """Whether the package has a part; names are compared without case."""
        return part.casefold() in self._folded

    def chunks(self, part: str) -> Iterator[bytes]:
        """Unpacked bytes of one part, a chunk at a time; InputError for one that is damaged or beyond the limits."""
        info = self.parts[self._folded[part.casefold()]]
        size, large = info.file_size, info.file_size > LARGE_PART
        if size > min(PART_LIMIT, self._left):
            most = f"{PART_LIMIT >> 20} MiB in one part or {TOTAL_LIMIT >> 20} MiB in all"
            raise InputError(Fault(self.name, f"unpacks to more than {most}; xlperf does not open it"))
        if large and size > MOST_TIMES * info.compress_size:
            problem = f"its part {part} unpacks to more than {MOST_TIMES} times its size"
            raise InputError(Fault(self.name, f"{problem}; xlperf does not open it"))
        if size > _COUNTED_PART:
            self._count_elements(part, info)
        self._left -= size
        yield from self._unpacked(part, info)

    def _unpacked(self, part: str, info: zipfile.ZipInfo) -> Iterator[bytes]:
        try:
            with self._zip.open(info) as stream:
                while chunk := stream.read(_CHUNK):
                    yield chunk
        except (zipfile.BadZipFile, OSError, ValueError, EOFError, RuntimeError):
            raise self.damaged(part) from None
        except Exception as error:  # zlib.error, lzma.LZMAError: a damaged stream, whatever its method
            if type(error).__module__ in ("zlib", "lzma", "_lzma", "bz2"):
                raise self.damaged(part) from None
            raise

    def _count_elements(self, part: str, info: zipfile.ZipInfo) -> None:
        """Refuse a part of too many elements; an element has one tag if it is empty, else two."""
        count = 0
        for chunk in self._unpacked(part, info):
            count += chunk.count(b"<") - chunk.count(b"</")
            if count > MOST_ELEMENTS:
                problem = f"its part {part} holds more than {MOST_ELEMENTS:,} elements"
                raise InputError(Fault(self.name, f"{problem}; split the sheet, or take CSV or Parquet"))

    def parse(self, part: str, start: Start, end: End | None = None, text: Text | None = None) -> None:
        """Parse one part; elements have no prefix. A document type is refused, so that no entity is ever expanded."""
        parser = expat.ParserCreate()
        parser.buffer_text = True

        def refuse(*_: object) -> None:
            problem = f"its part {part} declares a document type; xlperf does not open such files"
            raise InputError(Fault(self.name, problem))

        parser.StartDoctypeDeclHandler = refuse
        parser.EntityDeclHandler = refuse
        local = _LocalNames()
        parser.StartElementHandler = lambda name, attributes: start(local[name], attributes)
        if end is not None:
            parser.EndElementHandler = lambda name: end(local[name])
        if text is not None:
            parser.CharacterDataHandler = text
        try:
            for chunk in self.chunks(part):
                parser.Parse(chunk, False)
            parser.Parse(b"", True)
        except (expat.ExpatError, ValueError, LookupError):  # ValueError: an encoding that the parser does not take
            raise self.damaged(part) from None

    def relations(self, part: str) -> dict[str, tuple[str, str]]:
        """Relations of a part: id -> (last word of the type, name of the target part)."""
        folder, name = posixpath.split(part)
        source = posixpath.join(folder, "_rels", f"{name}.rels")
        names: dict[str, tuple[str, str]] = {}

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "Relationship" and attributes.get("TargetMode") != "External":
                target = attributes.get("Target", "")
                full = target.lstrip("/") if target.startswith("/") else posixpath.normpath(f"{folder}/{target}")
                kind = attributes.get("Type", "").rpartition("/")[2]
                names[attributes.get("Id", "")] = (kind, full.lstrip("/"))

        if self.has(source):
            self.parse(source, start)
        return names


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise InputError(Fault(path.name or str(path), "is a folder; a workbook (.xlsx) is meant"))
        with path.open("rb") as stream:
            head = stream.read(8)
            if head == _OLE:
                encrypted = "EncryptedPackage".encode("utf-16-le") in stream.read(64 * 2**20)
                old = "is an old Excel workbook (.xls); save it as .xlsx"
                raise InputError(Fault(path.name, _ENCRYPTED if encrypted else old))
            crowded = _directory_size(stream) > _DIRECTORY_LIMIT
    except FileNotFoundError:
        raise InputError(Fault(str(path), "there is no such file")) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(Fault(str(path), f"cannot be read: {reason}")) from None
    if not head:
        raise InputError(Fault(path.name, "is empty; a workbook (.xlsx) is meant"))
    if not head.startswith(b"PK"):
        raise InputError(Fault(path.name, "is no .xlsx workbook; open it in Excel or LibreOffice and save it as .xlsx"))
    if crowded:
        raise InputError(Fault(path.name, f"holds more than {MAX_PARTS:,} parts; xlperf does not open it"))


def _directory_size(stream: BinaryIO) -> int:
    """Bytes of the list of parts, which zipfile parses whole, by the last record of a zip; 0 without one. [B]"""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 2**16 - 128))
    tail = stream.read()
    end, larger = tail.rfind(b"PK\5\6"), tail.rfind(b"PK\6\6")
    result = int.from_bytes(tail[end + 12 : end + 16], "little") if end >= 0 else 0
    wide = int.from_bytes(tail[larger + 40 : larger + 48], "little") if larger >= 0 else 0
    return max(result if result != 0xFFFFFFFF or larger < 0 else 0, wide)


def _unreadable(parts: dict[str, zipfile.ZipInfo], opendocument: bool) -> str:
    """Why a package of these parts is not a workbook of its format, "" if it is."""
    if opendocument and "content.xml" not in parts:
        return "is no OpenDocument spreadsheet (.ods); open it in LibreOffice and save it as .ods or .xlsx"
    if any(info.flag_bits & 1 for info in parts.values()):
        return _ENCRYPTED
    if opendocument:
        return ""
    if "xl/workbook.bin" in parts:
        return "is a binary workbook (.xlsb); save it as .xlsx"
    if "content.xml" in parts:
        return "is an OpenDocument file; save it as .xlsx, or give it its ending, .ods"
    if "[Content_Types].xml" not in parts:
        return "is no .xlsx workbook; open it in Excel or LibreOffice and save it as .xlsx"
    return ""
