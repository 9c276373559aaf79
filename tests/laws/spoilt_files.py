"""Good files of every kind that xlperf reads, and ways to spoil them, drawn at random: bytes, XML, cells, columns."""

from __future__ import annotations

import contextlib
import io
import random
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlperf.catalog.schema import Column


sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

PLANS = (
    "name,model,accelerator,num accelerators,tensor parallel,pipeline parallel,global batch size,precision,recompute\n"
    "a,Llama3-8B,H100-SXM-80GB,8,2,1,8,bf16,none\n"
    "b,Llama3-70B,H100-SXM-80GB,64,8,4,64,fp8,selective\n"
    "c,GPT3-175B,A100-SXM4-80GB,64,8,8,128,bf16,full\n"
)
SERVING = (
    "name,model,accelerator,num accelerators,tensor parallel,prompt length,output length,concurrency,ttft target (ms)\n"
    "a,Llama3-8B,H100-SXM-80GB,1,1,1000,100,8,500\n"
    "b,Llama3-70B,H100-SXM-80GB,8,8,2000,200,16,\n"
)
PUBLISHED = "row_id,model,gpu,n_gpus,tp,pp,seq_len,global_batch,iter_time_s\nr1,GPT-3 175B,A100,64,8,8,2048,64,18.13\n"
DESIGNS = "chiplet,package,node,num dies,module area (mm2),memory stacks\na,CoWoS-S,N5,2,800,4\n"

NUMBERS = [
    "0", "-1", "1e308", "-1e308", "1e400", "1e-320", "NaN", "nan", "inf", "-Infinity", "1_000", "\u0661\u0662",
    "\uff11",
    "0x10", "1,5", "1.5.2", "9" * 400, "8.5", "1e12", "--3", "+7", "1e", "TRUE", "\u2212" + "4", "1/2", "12 %", " 8 ",
    "2024-01-01", "#N/A", "#REF!", "Err:502", "auto", "AUTO", "", " ", "\u00a0", "4294967296", "9007199254740993",
]  # fmt: skip
TEXTS = [
    "x;=1+1", "=1+1", "@SUM(A1)", "a\tb", "a\nb", "a\r\nb", "\u2028", "\u202eabc", "\x85", "\x9b2J", "a" * 40_000,
    "'", '"', '""', "\\", "%s {}", "{0.__class__}", "../../etc/passwd", "\U0001f600", "e\u0301", "\u0130", "\u00df",
    "null", "None", "(GB/s)", "memory bandwidth (furlong)", "memory bandwidth (TB/s) (x)", "((", ")", "-", "_", ".",
    "0",
    "Llama3-8B", "H100-SXM-80GB", "training", "name", "model", "accelerator", "prompt length", "fp8", "yes", "full",
    "H100-SXM-80GB;A100-SXM4-80GB", "#N/A", "auto", "\ufeff", "\ufffe", "\u200b",
]  # fmt: skip
HEADERS = [
    "num accelerators (GB)", "tensor parallel (-)", "TENSOR_PARALLEL", "tensor-parallel ()", "step time (s)",
    "step_time",
    "memory bandwidth (bit/s)", "memory bandwidth (TB/s", "memory capacity", "unknown", "(unit)", "name ",
    "prompt length",
    "batch size", "output length (token)", "reason", "price", "tier", "row_id", "chiplet", "device",
]  # fmt: skip
XML_TEXTS = [
    "_x001B_[2J", "_xD800_", "_xDC00__xD83D_", "_xD83D__xDE00_", "_x0000_", "_x000A_", "&#10;=1", "&#x85;", "&#x202E;",
    "&amp;",
    "&lt;x&gt;", "]]>", "&#0;", "&#xD800;", "&nothing;", "<r><t>a</t></r>", "<rPh><t>b</t></rPh>", "_x", "_xZZZZ_",
]  # fmt: skip
REFERENCES = [
    "A1:ZZZZZZZ9",
    "A1:XFD1048576",
    "B2",
    "A9:A1",
    "A0:B0",
    "$A$1:$B$2",
    "",
    "A1:A1",
    "R1C1",
    "A1:C99999999999",
]
CELLS = [
    '<c r="{r}" t="n"><v>{n}</v></c>', '<c r="{r}" t="str"><v>{x}</v></c>', '<c r="{r}" t="e"><v>#DIV/0!</v></c>',
    '<c r="{r}" t="b"><v>{n}</v></c>', '<c r="{r}" t="d"><v>{n}</v></c>', '<c r="{r}" t="s"><v>{n}</v></c>',
    '<c r="{r}" t="inlineStr"><is><t>{x}</t></is></c>', '<c r="{r}"><f>1+1</f></c>', '<c r="{r}" t="zz"><v>1</v></c>',
    '<c r="{r}"><f t="shared" si="{n}"/><v>{n}</v></c>', '<c r="{r}" s="{n}"><v>45000.5</v></c>', '<c r="{r}"/>',
    "<c/>",
    '<c r="{n}"><v>1</v></c>', '<c r="{r}" t="str"><f>"{x}"</f><v></v></c>', '<c r="{r}"><v>1</v><v>2</v></c>',
]  # fmt: skip
ENCODINGS = [
    "utf-7",
    "utf-16",
    "utf-32",
    "latin-1",
    "cp037",
    "shift_jis",
    "ascii",
    "x-none",
    "",
    "rot13",
    "utf-8-sig",
    "zlib",
]


# --- what is spoilt ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Streams of their own for what is printed."""
    out, err = io.BytesIO(), io.BytesIO()
    kept = sys.stdout, sys.stderr
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", newline="\n")
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", newline="\n", errors="backslashreplace")
    try:
        yield out, err
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            stream.detach()
        sys.stdout, sys.stderr = kept


@cache
def sources() -> dict[str, bytes]:
    """Files as they should be, by name; small ones, so that thousands are read."""
    from workbook_samples import sheets, write

    from xlperf.base.resources import template
    from xlperf.cli import run

    found = {
        "plans.csv": PLANS.encode(),
        "serving.csv": SERVING.encode(),
        "published.csv": PUBLISHED.encode(),
        "designs.csv": DESIGNS.encode(),
        "recompute.xlsx": template("studies").joinpath("recompute.xlsx").read_bytes(),
    }
    with tempfile.TemporaryDirectory() as name, quiet():
        folder = Path(name)
        for file in ("plans.csv", "serving.csv"):
            (folder / file).write_bytes(found[file])
        write(folder / "small.xlsx", sheets())
        run(["evaluate", str(folder / "plans.csv"), "-o", str(folder / "evaluated.xlsx")])
        run(["evaluate", str(folder / "plans.csv"), "-o", str(folder / "plans.parquet")])
        run(["evaluate", str(folder / "serving.csv"), "-o", str(folder / "serving.parquet")])
        run(["new", str(folder / "empty.xlsx"), "--empty"])
        for file in ("small.xlsx", "evaluated.xlsx", "plans.parquet", "serving.parquet", "empty.xlsx"):
            found[file] = (folder / file).read_bytes()
    return found


@cache
def shipped() -> bytes:
    """The shipped workbook, which takes ten times as long to read."""
    from xlperf.base.resources import workbook

    return Path(workbook()).read_bytes()


def odd_text(rng: random.Random) -> str:
    """A number or a text that somebody may have in a cell."""
    return rng.choice(rng.choice([NUMBERS, TEXTS, HEADERS]))


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, cut out or put in."""
    if not data:
        return b"\0"
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        place = rng.randrange(len(changed)) if changed else 0
        way = rng.randrange(4)
        if way == 0 and changed:
            changed[place] ^= 1 << rng.randrange(8)
        elif way == 1:
            changed[place:place] = rng.randbytes(rng.choice([1, 2, 20]))
        elif way == 2:
            del changed[place : place + rng.choice([1, 4, 100])]
        elif changed:
            changed[place] = rng.choice(b"\0\xff<>&\"'=,;\n")
    return bytes(changed)


def truncated(rng: random.Random, data: bytes) -> bytes:
    """The start of a file."""
    return data[: rng.randrange(len(data) + 1)]


# --- workbooks -----------------------------------------------------------------------------------------------------

Parts = list[tuple[str, bytes]]


def zipped(parts: Parts, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A package of parts, names that come twice included."""
    stream = io.BytesIO()
    import warnings

    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as package:
        warnings.simplefilter("ignore")
        for name, content in parts:
            package.writestr(name or "x", content)
    return stream.getvalue()


def one_of(rng: random.Random, parts: Parts, words: str = "") -> int:
    """Position of a part; sheets more often than others."""
    wanted = [
        place for place, (name, _) in enumerate(parts) if re.search(words or r"sheet\d|table\d|shared|workbook", name)
    ]
    return rng.choice(wanted if wanted and (words or rng.random() < 0.8) else range(len(parts)))


def bytes_of_a_part(rng: random.Random, parts: Parts) -> None:
    """Bytes changed inside a part."""
    place = one_of(rng, parts)
    parts[place] = (parts[place][0], flipped(rng, parts[place][1]))


def list_of_parts(rng: random.Random, parts: Parts) -> None:
    """Parts that are gone, twice there, empty, renamed, or have each other's content."""
    place, other = one_of(rng, parts), one_of(rng, parts)
    name, content = parts[place]
    way = rng.randrange(6)
    if way == 0:
        del parts[place]
    elif way == 1:
        parts.append((name, parts[other][1]))
    elif way == 2:
        parts[place] = (name, b"")
    elif way == 3:
        parts[place] = (
            rng.choice([name.upper(), f"/{name}", f"../{name}", name + "\x1b", "xl\\" + name, "\u202e"]),
            content,
        )
    elif way == 4:
        parts[place], parts[other] = (name, parts[other][1]), (parts[other][0], content)
    else:
        parts.append((f"{rng.random()}.xml", content))


def edited(rng: random.Random, content: bytes, pattern: str, replace: Callable[[re.Match[str]], str]) -> bytes:
    """A part with one of the places of a pattern replaced."""
    text = content.decode("utf-8", "replace")
    found = list(re.finditer(pattern, text, re.DOTALL))
    if not found:
        return content
    one = rng.choice(found)
    return (text[: one.start()] + replace(one) + text[one.end() :]).encode("utf-8", "replace")


def attribute(rng: random.Random, parts: Parts) -> None:
    """An attribute that is odd, gone or twice there."""
    place = one_of(rng, parts)

    def replace(found: re.Match[str]) -> str:
        odd = escaped(
            rng.choice([*NUMBERS, *REFERENCES, *TEXTS[:30], "../../x.xml", "/xl/workbook.xml", "rId1", "n", "1048577"])
        )
        return rng.choice(
            [f' {found[1]}="{odd}"', f' {found[1]}="{odd}"', "", found[0] * 2, f' {found[1]}X="{found[2]}"']
        )

    parts[place] = (parts[place][0], edited(rng, parts[place][1], r'\s([\w:]+)="([^"]*)"', replace))


def escaped(text: str) -> str:
    """A text inside XML, without the characters that XML cannot hold."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe]", "", text)


def tag(rng: random.Random, parts: Parts) -> None:
    """A tag that is gone, renamed, twice there, or nested deep."""
    place = one_of(rng, parts)
    ways = [
        "",
        "<x>",
        "</x>",
        "<c>" * 2000,
        "<row/>",
        "<si/>",
        "<sheetData/>",
        '<table ref="A1:B2"/>',
        "<!-- -->",
        "<?x ?>",
    ]
    parts[place] = (
        parts[place][0],
        edited(
            rng,
            parts[place][1],
            r"<[^>]*>",
            lambda found: rng.choice([*ways, found[0] * 2, found[0].replace("<", "<z:")]),
        ),
    )


def encoding(rng: random.Random, parts: Parts) -> None:
    """An encoding that is not that of the part, a mark at its start, a document type."""
    place = one_of(rng, parts)
    name, content = parts[place]
    way = rng.randrange(4)
    if way == 0:
        body = re.sub(rb"^<\?xml[^>]*\?>", b"", content)
        content = f'<?xml version="1.0" encoding="{rng.choice(ENCODINGS)}"?>'.encode() + body
    elif way == 1:
        content = rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\0", b" "]) + content
    elif way == 2:
        text = content.decode("utf-8", "replace")
        content = text.encode(rng.choice(["utf-16", "utf-16-be", "utf-32", "latin-1"]), "replace")
    else:
        entity = rng.choice(['<!ENTITY a "b">', '<!ENTITY a SYSTEM "file:///etc/passwd">', '<!ENTITY % a "b"> %a;', ""])
        body = re.sub(rb"^<\?xml[^>]*\?>", b"", content)
        content = f"<!DOCTYPE x [{entity}]>".encode() + body.replace(b"</", b"&a;</", rng.randrange(2))
    parts[place] = (name, content)


def cell(rng: random.Random, parts: Parts) -> None:
    """Cells of a sheet that are odd."""
    place = one_of(rng, parts, r"worksheets/sheet")

    def replace(found: re.Match[str]) -> str:
        odd = rng.choice(XML_TEXTS) if rng.random() < 0.4 else escaped(odd_text(rng))
        return rng.choice(CELLS).format(r=found[1], n=escaped(rng.choice(NUMBERS)), x=odd)

    for _ in range(rng.choice([1, 1, 3, 20])):
        parts[place] = (
            parts[place][0],
            edited(rng, parts[place][1], r'<c r="([A-Z]+\d+)"(?:[^>]*/>|[^>]*>.*?</c>)', replace),
        )


def string(rng: random.Random, parts: Parts) -> None:
    """Texts of cells, headers among them, that are odd."""
    place = one_of(rng, parts, r"sharedStrings|sheet\d")

    def replace(found: re.Match[str]) -> str:
        odd = rng.choice(XML_TEXTS) if rng.random() < 0.4 else escaped(rng.choice([*TEXTS, *HEADERS]))
        return f"<t>{odd}</t>"

    for _ in range(rng.choice([1, 1, 5])):
        parts[place] = (parts[place][0], edited(rng, parts[place][1], r"<t[^>]*>([^<]*)</t>", replace))


def name_of_sheet(rng: random.Random, parts: Parts) -> None:
    """Names of sheets and tables that are odd."""
    place = one_of(rng, parts, r"workbook\.xml$|tables/table")
    odd = escaped(rng.choice([*TEXTS, "training", "accelerators", "Inference ", "&#x9b;2J", "&#x202e;x", "a&#10;b"]))
    parts[place] = (
        parts[place][0],
        edited(rng, parts[place][1], r'(displayName|name|ref)="([^"]*)"', lambda found: f'{found[1]}="{odd}"'),
    )


PART_EDITS = [
    bytes_of_a_part,
    list_of_parts,
    attribute,
    attribute,
    tag,
    encoding,
    cell,
    cell,
    string,
    string,
    name_of_sheet,
]


def spoilt_workbook(rng: random.Random, data: bytes) -> bytes:
    """A workbook with something wrong in it."""
    way = rng.randrange(14)
    if way == 0:
        return flipped(rng, data)
    if way == 1:
        return truncated(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        parts = [(name, package.read(name)) for name in package.namelist()]
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        rng.choice(PART_EDITS)(rng, parts)
        if not parts:
            break
    return zipped(parts, rng.choice([zipfile.ZIP_DEFLATED] * 6 + [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2]))


# --- text and Parquet ----------------------------------------------------------------------------------------------


def spoilt_csv(rng: random.Random, data: bytes) -> bytes:
    """A CSV file with something wrong in it."""
    way = rng.randrange(10)
    if way == 0:
        return flipped(rng, data)
    if way == 1:
        return truncated(rng, data)
    lines = [line.split(",") for line in data.decode().splitlines()]
    for _ in range(rng.choice([1, 1, 2, 5])):
        row = rng.randrange(len(lines)) if rng.random() < 0.7 else 0
        column = rng.randrange(len(lines[row])) if lines[row] else 0
        edit = rng.randrange(8)
        if edit < 4 and lines[row]:
            odd = odd_text(rng)
            quoted = '"' + odd.replace('"', '""') + '"'
            lines[row][column] = rng.choice([odd, quoted, quoted])
        elif edit == 4 and lines[row]:
            del lines[row][column]
        elif edit == 5:
            lines[row].insert(column, odd_text(rng))
        elif edit == 6:
            times = rng.choice([1, 1, 2, 300])
            lines.insert(row, list(lines[row]) * (times if len(lines[row]) < 1000 else 1))  # else gigabytes
        else:
            lines[row] = lines[row][:column] + lines[row]
    separator, ending = rng.choice([",", ",", ",", ";", "\t", "|"]), rng.choice(["\n", "\n", "\r\n", "\r", "\x85"])
    text = rng.choice(["", "", "", "\ufeff", "sep=;\n", "sep=,\r\n", "\n\n"]) + ending.join(map(separator.join, lines))
    if way == 2:
        return text.encode(rng.choice(["utf-16", "utf-16-le", "latin-1", "utf-7", "cp1252", "utf-32"]), "replace")
    return text.encode("utf-8", "surrogatepass")


def spoilt_parquet(rng: random.Random, data: bytes) -> bytes:
    """A Parquet file with something wrong in it: bytes, or columns of odd types."""
    if rng.random() < 0.5:
        return flipped(rng, data) if rng.random() < 0.7 else truncated(rng, data)
    import datetime
    import decimal

    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.ParquetFile(io.BytesIO(data)).read()
    rows = table.num_rows
    for _ in range(rng.choice([1, 2, 3])):
        value, kind = rng.choice(
            [
                ([1, 2], None), ({"a": 1}, None), ([("a", 1)], pa.map_(pa.string(), pa.int64())), (b"\xff", None),
                (True, None),
                (decimal.Decimal("8"), None), (decimal.Decimal("1e30"), None), (datetime.date(2024, 1, 1), None),
                (datetime.datetime(9999, 12, 31), None), (datetime.timedelta(1), None), (datetime.time(1), None),
                (None, None),
                (2**63, pa.uint64()), (float("nan"), None), (float("inf"), None), (1.5, pa.float32()), (-1, pa.int8()),
                ("x", pa.dictionary(pa.int8(), pa.string())), ([], pa.large_list(pa.string())), (odd_text(rng), None),
                (b"ab", pa.binary(2)), (0, pa.timestamp("s", tz="UTC")), (2**62, pa.timestamp("s")), (1,
                pa.duration("s")),
            ]
        )  # fmt: skip
        column = pa.array([value] * rows, type=kind)
        name = rng.choice([*table.column_names[:9], *HEADERS, "", "\x1b[2J", "a\nb"])
        if name in table.column_names and rng.random() < 0.8:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    if rng.random() < 0.2:
        table = table.slice(0, 0)
    stream = io.BytesIO()
    with contextlib.suppress(pa.ArrowException):
        parquet.write_table(table, stream)
    return stream.getvalue()


def plausible_value(rng: random.Random, column: Column) -> Any:
    """A value that a column may have, small, large or just too large; ``auto`` where it may stand."""
    if column.may_be_auto and rng.random() < 0.2:
        return "auto"
    if column.entries:
        return rng.choice(column.entries)
    if column.kind == "number":
        low, high, _ = column.limits
        wide = [1, 2, 3, 4, 7, 8, 16, 64, 100, 1000, 4096, 100_000, 1e6, 1e9, 1e12, 1e15, 1e30, 0, 0.5, 0.01, 1e-9, -1]
        inside = [value for value in wide if low <= value <= high]
        return rng.choice(inside if inside and rng.random() < 0.95 else wide)
    names = {
        "models": ["Llama3-8B", "DeepSeek-V3", "Mixtral-8x7B"],
        "accelerators": ["H100-SXM-80GB", "MI300X", "TPUv3"],
    }
    return rng.choice(
        [*names.get(column.reference, []), *names.get(column.reference, []), "any", "vllm", "megatron", "x"]
    )


def odd_plans(rng: random.Random, data: bytes) -> bytes:
    """Plans with more columns, most of them with values that could be meant."""
    from xlperf.catalog.schema import table_schema

    lines = [line.split(",") for line in data.decode().splitlines()]
    schema = table_schema("inference" if "prompt length" in lines[0] else "training")
    given = {name.partition(" (")[0].replace(" ", "_") for name in lines[0]}
    for column in rng.sample(schema.columns, rng.choice([1, 2, 4, 8])):
        if column.name not in given:
            lines[0].append(column.header)
            for line in lines[1:]:
                line.append(f"{plausible_value(rng, column)}")
    return "\n".join(map(",".join, lines)).encode()
