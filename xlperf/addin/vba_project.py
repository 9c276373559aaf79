"""VBA projects (``vbaProject.bin``) read and written as source text, without Excel.

A project is a compound file [1]_ whose storage ``VBA`` holds a stream per module and a directory of them [2]_. Excel
compiles the source when it opens a project without compiled code, so that none is written.

.. [1] Microsoft, "[MS-CFB]: Compound File Binary File Format".
.. [2] Microsoft, "[MS-OVBA]: Office VBA File Format Structure".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_SIGNATURE = bytes.fromhex("d0cf11e0a1b11ae1")
_FREE, _END, _FAT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_SECTOR, _MINI_SECTOR, _CUTOFF, _CHUNK = 512, 64, 4096, 4096
_ENTRY = struct.Struct("<64sHBBIII16sIQQIQ")
_STORAGE, _STREAM, _ROOT = 1, 2, 5
_RED, _BLACK = 0, 1
_NO_COMPILED_CODE = bytes.fromhex("cc61ffff000100")
_CANDIDATES = 64  # earlier places of the same three bytes that the compression compares

# Records of the directory of modules.
_VERSION, _PROJECT_NAME, _NUM_MODULES, _COOKIE, _TERMINATOR = 0x09, 0x04, 0x0F, 0x13, 0x10
_NAME, _NAME_UTF16, _STREAM_NAME, _STREAM_UTF16, _DOC, _DOC_UTF16 = 0x19, 0x47, 0x1A, 0x32, 0x1C, 0x48
_OFFSET, _HELP, _MODULE_COOKIE, _STANDARD, _MODULE_END = 0x31, 0x1E, 0x2C, 0x21, 0x2B

Streams = dict[tuple[str, ...], bytes]


class VbaError(ValueError):
    """The bytes are no VBA project of the kind that is read here."""


@dataclass
class Module:
    """A module: its source text and the records that the directory holds about it."""

    source: str
    records: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass
class Project:
    """A VBA project as source text: its name, and its modules by name in the order of the project."""

    name: str
    modules: dict[str, Module]
    _head: list[tuple[int, bytes]]
    _settings: str

    @classmethod
    def read(cls, content: bytes) -> Project:
        """The project in the bytes of a ``vbaProject.bin``; raises VbaError if they hold none."""
        try:
            streams = read_compound_file(content)
            head: list[tuple[int, bytes]] = []
            modules: dict[str, Module] = {}
            records = head
            for kind, value in _records(decompressed(streams["VBA", "dir"])):
                if kind == _NAME:
                    records = modules.setdefault(value.decode("cp1252"), Module("")).records
                if kind not in (_NUM_MODULES, _COOKIE, _TERMINATOR):
                    records.append((kind, value))
            for module in modules.values():
                facts = dict(module.records)
                stream = streams["VBA", facts[_STREAM_NAME].decode("cp1252")]
                start = int.from_bytes(facts[_OFFSET], "little")
                module.source = decompressed(stream[start:]).decode("cp1252")
            name = dict(head)[_PROJECT_NAME].decode("cp1252")
            return cls(name, modules, head, streams[("PROJECT",)].decode("cp1252"))
        except (KeyError, IndexError, struct.error, UnicodeDecodeError) as error:
            raise VbaError(f"not a VBA project ({error!r})") from None

    def add(self, name: str, source: str) -> None:
        """Put a standard module in, or replace the source of the one of that name."""
        if name in self.modules:
            self.modules[name].source = source
            return
        narrow, wide = name.encode("cp1252"), name.encode("utf-16le")
        records = [
            (_NAME, narrow),
            (_NAME_UTF16, wide),
            (_STREAM_NAME, narrow),
            (_STREAM_UTF16, wide),
            (_DOC, b""),
            (_DOC_UTF16, b""),
            (_OFFSET, bytes(4)),
            (_HELP, bytes(4)),
            (_MODULE_COOKIE, b"\xff\xff"),
            (_STANDARD, b""),
            (_MODULE_END, b""),
        ]
        self.modules[name] = Module(source, records)
        listed = [*re.finditer(r"(?m)^(?:Module|Class|Document)=.*\r\n", self._settings)][-1].end()
        self._settings = f"{self._settings[:listed]}Module={name}\r\n{self._settings[listed:].rstrip()}\r\n"
        if "[Workspace]" in self._settings:
            self._settings += f"{name}=0, 0, 0, 0, C\r\n"

    def remove(self, name: str) -> None:
        """Take a module out."""
        del self.modules[name]
        self._settings = re.sub(rf"(?m)^(?:(?:Module|Class)={name}|{name}=.*)\r\n", "", self._settings)

    def written(self) -> bytes:
        """The bytes of a ``vbaProject.bin``: source text only."""
        settings = re.sub(r'(?m)^Name=".*"', f'Name="{self.name}"', self._settings)
        head = [(kind, self.name.encode("cp1252") if kind == _PROJECT_NAME else value) for kind, value in self._head]
        head += [(_NUM_MODULES, struct.pack("<H", len(self.modules))), (_COOKIE, b"\xff\xff")]
        records = [record for module in self.modules.values() for record in module.records]
        listed = [(kind, bytes(4) if kind == _OFFSET else value) for kind, value in records]
        names = b"".join(name.encode("cp1252") + b"\0" + name.encode("utf-16le") + b"\0\0" for name in self.modules)
        streams: Streams = {
            ("PROJECT",): settings.encode("cp1252"),
            ("PROJECTwm",): names + b"\0\0",
            ("VBA", "_VBA_PROJECT"): _NO_COMPILED_CODE,
            ("VBA", "dir"): compressed(b"".join(_record(*one) for one in [*head, *listed, (_TERMINATOR, b"")])),
        }
        for module in self.modules.values():
            lines = module.source.replace("\r\n", "\n").replace("\n", "\r\n")
            streams["VBA", dict(module.records)[_STREAM_NAME].decode("cp1252")] = compressed(lines.encode("cp1252"))
        return compound_file(streams)


def _records(content: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place < len(content):
        kind, size = struct.unpack_from("<HI", content, place)
        size = 6 if kind == _VERSION else size  # this one states 4 and holds 6
        yield kind, content[place + 6 : place + 6 + size]
        place += 6 + size
        if kind == _TERMINATOR:
            return


def _record(kind: int, value: bytes) -> bytes:
    return struct.pack("<HI", kind, 4 if kind == _VERSION else len(value)) + value


# --- compression of modules


def _offset_bits(produced: int) -> int:
    """Bits of a copy token that say how far back it reaches, after so many bytes of a chunk."""
    return max(4, (produced - 1).bit_length())


def decompressed(content: bytes) -> bytes:
    """The inverse of :func:`compressed`.

    >>> decompressed(compressed(b"to be or not to be " * 500)) == b"to be or not to be " * 500
    True
    """
    if content[:1] != b"\x01":
        raise VbaError("not compressed as VBA is")
    out, place = bytearray(), 1
    while place < len(content):
        (header,) = struct.unpack_from("<H", content, place)
        end = min(place + (header & 0xFFF) + 3, len(content))
        place += 2
        if not header >> 15:
            out += content[place : place + _CHUNK]
            place += _CHUNK
            continue
        start = len(out)
        while place < end:
            flags = content[place]
            place += 1
            for bit in range(8):
                if place >= end:
                    break
                if not flags >> bit & 1:
                    out.append(content[place])
                    place += 1
                    continue
                (token,) = struct.unpack_from("<H", content, place)
                place += 2
                bits = _offset_bits(len(out) - start)
                back = (token >> (16 - bits)) + 1
                for _ in range((token & (0xFFFF >> bits)) + 3):
                    out.append(out[-back])
    return bytes(out)


def compressed(content: bytes) -> bytes:
    """Bytes in the compression of VBA streams: chunks of 4096 with copies of earlier bytes of the chunk."""
    out = bytearray(b"\x01")
    for start in range(0, len(content), _CHUNK):
        chunk = content[start : start + _CHUNK]
        body = _tokens(chunk)
        if len(body) >= _CHUNK and len(chunk) == _CHUNK:
            out += struct.pack("<H", 0x3FFF) + chunk
        else:
            out += struct.pack("<H", 0xB000 | (len(body) - 1)) + body
    return bytes(out)


def _tokens(chunk: bytes) -> bytes:
    body, place, indexed = bytearray(), 0, 0
    seen: dict[bytes, list[int]] = {}
    while place < len(chunk):
        flags = len(body)
        body.append(0)
        for bit in range(8):
            if place >= len(chunk):
                break
            for earlier in range(indexed, place):
                seen.setdefault(chunk[earlier : earlier + 3], []).append(earlier)
            indexed = max(indexed, place)
            bits = _offset_bits(place)
            longest, back = _longest_match(chunk, place, seen, (0xFFFF >> bits) + 3)
            if longest < 3:
                body.append(chunk[place])
                place += 1
                continue
            body += struct.pack("<H", (back - 1) << (16 - bits) | (longest - 3))
            body[flags] |= 1 << bit
            place += longest
    return bytes(body)


def _longest_match(chunk: bytes, place: int, seen: Mapping[bytes, list[int]], most: int) -> tuple[int, int]:
    """Length and distance of the longest earlier copy of the bytes at a place."""
    longest, longest_at = 0, 0
    most = min(most, len(chunk) - place)
    if most < 3:
        return 0, 0
    for earlier in reversed(seen.get(chunk[place : place + 3], [])[-_CANDIDATES:]):
        length = 3
        while length < most and chunk[earlier + length] == chunk[place + length]:
            length += 1
        if length > longest:
            longest, longest_at = length, earlier
    return longest, place - longest_at


# --- compound files


def read_compound_file(content: bytes) -> Streams:
    """The streams of a compound file of version 3, by their path."""
    if content[:8] != _SIGNATURE:
        raise VbaError("not a compound file")
    size = 1 << struct.unpack_from("<H", content, 30)[0]
    _, directory, _, cutoff, mini_table, _, more, _ = struct.unpack_from("<8I", content, 44)

    def sector(number: int) -> bytes:
        return content[(number + 1) * size : (number + 2) * size]

    tables = [*struct.unpack_from("<109I", content, 76)]
    while more < _FAT:
        *numbers, more = struct.unpack(f"<{size // 4}I", sector(more))
        tables += numbers
    links = [link for number in tables if number < _FAT for link in struct.unpack(f"<{size // 4}I", sector(number))]

    def chain(number: int) -> bytes:
        sectors = []
        while number < _FAT:
            sectors.append(sector(number))
            number = links[number]
        return b"".join(sectors)

    raw = chain(directory)
    entries = [_ENTRY.unpack_from(raw, start) for start in range(0, len(raw), _ENTRY.size)]
    mini_raw, mini = chain(mini_table), chain(entries[0][11])
    mini_links = struct.unpack(f"<{len(mini_raw) // 4}I", mini_raw)
    streams: Streams = {}
    waiting: list[tuple[int, tuple[str, ...]]] = [(entries[0][6], ())]
    while waiting:
        number, folder = waiting.pop()
        if number == _FREE:
            continue
        name, name_size, kind, _, left, right, child, *_, start, length = entries[number]
        path = (*folder, name[: name_size - 2].decode("utf-16le"))
        waiting += [(left, folder), (right, folder)]
        if kind == _STORAGE:
            waiting.append((child, path))
        elif length >= cutoff:
            streams[path] = chain(start)[:length]
        else:
            parts = []
            while start < _FAT:
                parts.append(mini[start * _MINI_SECTOR : (start + 1) * _MINI_SECTOR])
                start = mini_links[start]
            streams[path] = b"".join(parts)[:length]
    return streams


def compound_file(streams: Streams) -> bytes:
    """A compound file of version 3 with these streams; equal input gives equal bytes."""
    folders = sorted({path[:-1] for path in streams if len(path) > 1})
    entries = [((), _ROOT), *((path, _STORAGE) for path in folders), *((path, _STREAM) for path in sorted(streams))]
    sectors, links = bytearray(), list[int]()
    mini, mini_links = bytearray(), list[int]()

    def put(content: bytes, into: bytearray, table: list[int], size: int) -> int:
        if not content:
            return _END
        start, count = len(table), -(-len(content) // size)
        table.extend([*range(start + 1, start + count), _END])
        into.extend(content.ljust(count * size, b"\0"))
        return start

    starts = {}
    for path, content in sorted(streams.items()):
        large = len(content) >= _CUTOFF
        starts[path] = put(content, sectors, links, _SECTOR) if large else put(content, mini, mini_links, _MINI_SECTOR)
    starts[()] = put(bytes(mini), sectors, links, _SECTOR)
    directory = put(_directory(entries, streams, starts, len(mini)), sectors, links, _SECTOR)
    mini_raw = struct.pack(f"<{len(mini_links)}I", *mini_links)
    mini_raw += b"\xff" * (-len(mini_raw) % _SECTOR)
    mini_table = put(mini_raw, sectors, links, _SECTOR)
    first, count, per_sector = len(links), 1, _SECTOR // 4
    while count * per_sector < first + count:
        count += 1
    if count > 109:
        raise VbaError("larger than a VBA project may be")
    links += [_FAT] * count
    links += [_FREE] * (count * per_sector - len(links))
    head = _SIGNATURE + bytes(16) + struct.pack("<5H6x", 0x3E, 3, 0xFFFE, 9, 6)
    head += struct.pack(
        "<9I", 0, count, directory, 0, _CUTOFF, mini_table, len(mini_raw) // _SECTOR, _END, 0
    ) + struct.pack("<109I", *range(first, first + count), *[_FREE] * (109 - count))
    return head + bytes(sectors) + struct.pack(f"<{len(links)}I", *links)


def _directory(
    entries: list[tuple[tuple[str, ...], int]], streams: Streams, starts: Mapping[tuple[str, ...], int], mini: int
) -> bytes:
    """The directory of a compound file: each folder's entries as a red-black tree in the order of the format."""
    tree = {number: [_FREE, _FREE, _FREE, _BLACK] for number in range(len(entries))}

    def planted(numbers: list[int], depth: int, full: int) -> int:
        if not numbers:
            return _FREE
        middle = len(numbers) // 2
        node = tree[numbers[middle]]
        node[0] = planted(numbers[:middle], depth + 1, full)
        node[1] = planted(numbers[middle + 1 :], depth + 1, full)
        node[3] = _BLACK if depth < full else _RED  # only the last level, which is not full, is red
        return numbers[middle]

    for number, (path, kind) in enumerate(entries):
        if kind != _STREAM:
            inside = [one for one, (other, _) in enumerate(entries) if one and other[:-1] == path]
            inside.sort(key=lambda one: (len(entries[one][0][-1]), entries[one][0][-1].upper()))
            tree[number][2] = planted(inside, 0, (len(inside) + 1).bit_length() - 1)
    raw = b""
    for number, (path, kind) in enumerate(entries):
        name = (path[-1] if path else "Root Entry").encode("utf-16le")
        left, right, child, colour = tree[number]
        size = mini if kind == _ROOT else len(streams.get(path, b""))
        start = starts.get(path, 0)
        raw += _ENTRY.pack(name, len(name) + 2, kind, colour, left, right, child, bytes(16), 0, 0, 0, start, size)
    empty = _ENTRY.pack(b"", 0, 0, 0, _FREE, _FREE, _FREE, bytes(16), 0, 0, 0, 0, 0)
    return raw + empty * (-len(entries) % (_SECTOR // _ENTRY.size))
