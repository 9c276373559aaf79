"""Kernel measurements as arguments of the kernel equations: family, machine and measured time.

Rows have the columns of the sheet ``kernels`` of ``validation.xlsx``. A row without an equation of its own, or with a
measurement of another quantity, is left out with a reason.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from xlperf.base.arrays import Array
from xlperf.base.errors import Fault, InputError
from xlperf.base.units import factor
from xlperf.catalog.calibration import ANY, generation_line
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.cells import number_of, shown
from xlperf.catalog.table import Table
from xlperf.engine.join import Joined, join
from xlperf.equations.hardware.attention import attention_time, decode_attention_time, kv_cache_traffic
from xlperf.equations.hardware.gemm import gemm_time, product_traffic
from xlperf.equations.hardware.roofline import vector_time
from xlperf.equations.network.collectives import collective_time, ring_traffic
from xlperf.equations.plan.records import PRECISIONS
from xlperf.measurements.published import sheet_rows

Row = Mapping[str, object]
Constants = Mapping[str, Array]

HELD_BACK_SHARE = 0.3
_COMPANY = "nvidia"
FP8_BLOCK = "fp8_block"
DEEPGEMM, FLASH_2 = "deepgemm", "flashattention-2"
TENSORRT, TENSORRT_1_2 = "tensorrt-llm", "tensorrt-llm-1.2"
_PRECISIONS = dict.fromkeys(("bfloat16", "bf16", "fp16"), "bf16") | {"fp8": "fp8", "nvfp4": "fp4", "fp4": "fp4"}
_PRECISIONS |= dict.fromkeys(("fp8_block", "fp8 (DeepGEMM)"), FP8_BLOCK)
_OPERATIONS = {name: name for name in ("all_reduce", "all_gather", "reduce_scatter")} | {"alltoall": "all_to_all"}
_TIMES: dict[str, Callable[..., Array]] = {
    "gemm": gemm_time, "attention": attention_time, "attention_backward": partial(attention_time, direction="backward"),
    "attention_decode": decode_attention_time, "vector": vector_time,
}  # fmt: skip
"""Times of kernels by family; others are collectives."""
_WORDS = ("row_id", "source_id", "accelerator", "precision", "software")
_NUMBER = r"[0-9.eE+\-]+"
_FLASH = {"TensorRT-LLM": TENSORRT, "FlashAttention-2": FLASH_2, "FlashAttention-3": ANY, "cuDNN": ANY}
_FLASH |= {"AITER": ANY, "AITER asm": ANY}
_RANKS_PER_CHIP = {"Trainium1": 2.0, "MI250": 2.0, "MI250X": 2.0}  # in runs that count cores or dies
_HALF_CHIP = "half a chip"
_TIMED_BY_HOST, _HOST = ("hipkittens_gemm", "azure_mi300x"), 60.0
_OUTPUT_SIZE = 2.0
_SEEN_BY_HOST, _STARTS = 2.0, 1.0
_MOST_TOO_FAST, _IDLE_SHARE, _MOST_GROUPED, _IDLE = 0.1, 0.05, 8.0, 25.0
_FELT = 0.5  # share of the memory's bandwidth from which on a product would feel the memory
_OWN_PAGES = ("tlx_paged_decode",)  # sources whose sequences have pages of their own, read once for a group of heads


@dataclass(frozen=True)
class KernelRows:
    """Measurements of one kernel family beside its equation, (measurements,)."""

    family: str  # of calibration constants
    row_id: list[str]  # this and the next columns identify a measurement and its constants
    source_id: list[str]
    accelerator: list[str]
    generation: list[str]
    precision: list[str]
    software: list[str]
    time: Array  # measured [s]
    arguments: Mapping[str, Array]  # of the equation by name
    machine: Joined

    def __len__(self) -> int:
        return len(self.row_id)

    @property
    def held_back(self) -> np.ndarray:
        """Mask of measurements excluded from every fit, on all machines: a fixed share of shapes by their hash."""
        sizes = [self.arguments[name].tolist() for name in sorted(self.arguments) if not name.endswith("element_size")]
        names = (" ".join(f"{size:g}" for size in shape) for shape in zip(*sizes, strict=True))
        hashes = [int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) for name in names]
        return np.array([value / 16.0**8 < HELD_BACK_SHARE for value in hashes], dtype=bool)


@dataclass(frozen=True)
class Measurements:
    """Kernel rows by family, and why the others are left out (``row_id`` -> reason)."""

    families: Mapping[str, KernelRows]
    omitted: Mapping[str, str]


class _Omitted(Exception):
    """A row that no equation is compared with; the message is the reason."""


@dataclass(frozen=True)
class _Parsed:
    family: str
    row_id: str
    source_id: str
    accelerator: str
    precision: str
    software: str
    time: float
    arguments: dict[str, float]


def read_kernels(path: str | Path) -> list[dict[str, str]]:
    """Rows of the sheet ``kernels`` of a workbook."""
    result = sheet_rows(Path(path), "kernels", "row_id")
    if result is None:
        raise InputError(Fault(Path(path).name, "has no sheet kernels with a column row_id"))
    header, rows, _ = result
    return [dict(zip(header, row, strict=True)) for row in rows]


def machine_lines(catalog: Catalog) -> dict[str, str]:
    """Line of each generation of accelerators that is fitted by line, casefolded."""
    table = catalog.tables["accelerators"]
    pairs = zip(table.text("generation").tolist(), table.text("vendor").tolist(), strict=True)
    vendors: dict[str, set[str]] = {}
    for kind, vendor in pairs:
        vendors.setdefault(str(kind).casefold(), set()).add(str(vendor).casefold())
    return {kind: generation_line(kind) for kind in sorted(vendors) if _COMPANY not in vendors[kind]}


def measurements(rows: Sequence[Row], catalog: Catalog) -> Measurements:
    """Sort kernel rows (numbers as numbers or text, blank as "" or None) by family and join them to the catalog."""
    accelerators = {name.casefold() for name in catalog.tables["accelerators"].text("accelerator")}
    parsed: dict[str, list[_Parsed]] = {}
    omitted: dict[str, str] = {}
    for row in rows:
        try:
            measurement = _parse(row)
            if measurement.accelerator.casefold() not in accelerators:
                raise _Omitted(f"accelerator {measurement.accelerator} is not in the catalog")
        except _Omitted as reason:
            omitted[_text(row, "row_id")] = str(reason)
        else:
            parsed.setdefault(measurement.family, []).append(measurement)
    families = {}
    for family in sorted(parsed):
        of_family = parsed[family]
        words = {name: [getattr(measurement, name) for measurement in of_family] for name in _WORDS}
        arguments = {name: np.array([each.arguments[name] for each in of_family]) for name in of_family[0].arguments}
        joined = _joined(family, words, np.array([measurement.time for measurement in of_family]), arguments, catalog)
        keep, reasons = _physical(joined)
        omitted.update(reasons)
        families[family] = take_rows(joined, keep, catalog) if reasons else joined
    return Measurements(families, omitted)


def predicted_time(rows: KernelRows, constants: Constants, forward: Constants | None = None) -> Array:
    """Time of the family's equation, (rows, trials); ``forward`` constants serve rows of both attention passes."""
    device = rows.machine.device
    given = {name: values[:, None] for name, values in rows.arguments.items()}
    if rows.family == "attention_backward":
        if forward is None:
            raise ValueError("rows of the backward pass measure both passes: forward constants are needed")
        time = _TIMES["attention"](device, forward, **given) + _TIMES[rows.family](device, constants, **given)
    elif rows.family in _TIMES:
        time = _TIMES[rows.family](device, constants, **given)
    else:
        time = collective_time(rows.family, network=rows.machine.network, constants=constants, **given)
    return np.asarray(time)


def take_rows(rows: KernelRows, index: Sequence[int], catalog: Catalog) -> KernelRows:
    """Some measurements of a family, in the order given."""
    at = np.array(index, dtype=np.int64)
    words = {name: [getattr(rows, name)[row] for row in index] for name in _WORDS}
    arguments = {name: values[at] for name, values in rows.arguments.items()}
    return _joined(rows.family, words, rows.time[at], arguments, catalog)


def _joined(
    family: str, words: Mapping[str, list[str]], time: Array, arguments: Mapping[str, Array], catalog: Catalog
) -> KernelRows:
    precisions = [name if name in PRECISIONS else "fp8" for name in words["precision"]]
    columns = {
        "accelerator": np.array(words["accelerator"], dtype=object),
        "precision": np.array(precisions, dtype=object),
        "num_accelerators": np.maximum(arguments.get("group_size", np.ones(len(time))), 1.0),
    }
    machine = join(Table("training", columns), catalog)
    generation = [machine.generation.words[code] for code in machine.generation.codes.tolist()]
    return KernelRows(family, **words, generation=generation, time=time, arguments=arguments, machine=machine)


def _physical(rows: KernelRows) -> tuple[list[int], dict[str, str]]:
    """Measurements whose bytes came from the main memory once, or that hardly read any."""
    if rows.family == "gemm":
        return _from_memory(rows)
    if rows.family != "attention_decode":
        return list(range(len(rows))), {}
    given = rows.arguments
    shape = ("batch", "num_query_groups", "key_length", "head_size", "kv_element_size")
    traffic = kv_cache_traffic(*(given[name] for name in shape))
    share = traffic / rows.time / rows.machine.device.memory_bandwidth[:, 0]
    too_fast = share > 1.0
    names = np.array(rows.accelerator, dtype=object)
    suspect = {name for name in set(rows.accelerator) if too_fast[names == name].mean() > _MOST_TOO_FAST}
    grouped = given["num_heads"] != given["num_query_groups"]
    grouped &= np.array([source not in _OWN_PAGES for source in rows.source_id], dtype=bool)
    idle = (share < _IDLE_SHARE) & (given["num_heads"] <= _MOST_GROUPED * given["num_query_groups"])
    idle &= rows.time < _IDLE * factor("us")
    keep, reasons = [], {}
    for row, name in enumerate(rows.row_id):
        if idle[row]:
            keep.append(row)
        elif grouped[row]:
            reasons[name] = "grouped heads: these runs share pages of the cache, or read them once per head"
        elif given["kv_element_size"][row] < _OUTPUT_SIZE:
            reasons[name] = "heads not grouped and a cache in FP8: bound by conversions, not by the memory"
        elif too_fast[row] or rows.accelerator[row] in suspect:
            reasons[name] = "read faster than the memory can: the cache was measured"
        else:
            keep.append(row)
    return keep, reasons


def _from_memory(rows: KernelRows) -> tuple[list[int], dict[str, str]]:
    """Products whose inputs came from main memory: where some take less time than their bytes need, those of the same
    precision and machine that fit the cache and would be memory-bound are left out.
    """
    given = rows.arguments
    sizes = (given[name] for name in ("m", "n", "k", "batch", "element_size", "output_element_size"))
    traffic, device = product_traffic(*sizes), rows.machine.device
    share = traffic / rows.time / device.memory_bandwidth[:, 0]
    groups = list(zip(rows.accelerator, rows.precision, rows.source_id, strict=True))
    seen = {groups[row] for row in np.flatnonzero(share > 1.0).tolist()}
    cached = np.array([group in seen for group in groups], dtype=bool) & (share > _FELT)
    cached &= traffic <= device.l2_capacity[:, 0]
    gone = cached | (share > 1.0)
    reason = "the inputs were in the last-level cache: other products here were read faster than the memory can"
    return np.flatnonzero(~gone).tolist(), {rows.row_id[row]: reason for row in np.flatnonzero(gone).tolist()}


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    return "" if value is None or value != value else str(value).strip()


def _number(row: Row, column: str) -> float:
    text = _text(row, column)
    number = number_of(text)
    if text and not math.isfinite(number):
        place = f'row "{_text(row, "row_id")}" of the sheet kernels'
        raise InputError(Fault(place, f"{column} must be a number, got {shown(text)}"))
    return number


def _parse(row: Row) -> _Parsed:
    kind, parsers = _text(row, "kind"), {"gemm": _gemm, "attention": _attention, "attention_decode": _decode}
    parse = {**parsers, "collective": _collective, "vector_op": _vector}.get(kind)
    if parse is None:
        raise _Omitted(f"no equation stands for rows of kind {kind}")
    result = parse(row)
    if not result.time > 0.0 or not all(math.isfinite(value) for value in result.arguments.values()):
        raise _Omitted("the row lacks a size or a time")
    return result


def _parsed(
    row: Row, family: str, precision: str, time: float, arguments: dict[str, float], software: str = ANY
) -> _Parsed:
    identity = (_text(row, "row_id"), _text(row, "source_id"), _text(row, "gpu"))
    return _Parsed(family, *identity, precision, software, time, arguments)


def _precision(row: Row) -> str:
    dtype = _text(row, "dtype")
    if dtype not in _PRECISIONS:
        raise _Omitted(f"precision {dtype or 'not stated'}")
    return _PRECISIONS[dtype]


def _microseconds(row: Row) -> float:
    return _number(row, "latency_us") * factor("us")


def _gemm(row: Row) -> _Parsed:
    precision = _precision(row)
    early = "trtllm/1.2" in _text(row, "source") and _text(row, "gpu").startswith("B200")
    if precision == FP8_BLOCK and early:
        raise _Omitted("blockwise FP8 of an early release on this accelerator, since replaced: up to 5 times slower")
    size = PRECISIONS["fp8" if precision == FP8_BLOCK else precision].input_size
    arguments = {name: _number(row, name) for name in ("m", "n", "k")}
    products = 2.0 if _HALF_CHIP in _text(row, "notes") else 1.0  # both halves multiply at the same time
    arguments |= {"batch": products, "element_size": size, "output_element_size": _OUTPUT_SIZE}
    software = DEEPGEMM if "DeepGEMM" in _text(row, "dtype") else ANY
    if precision == "fp8" and early:
        software = TENSORRT_1_2  # its conversion to FP8 moved twice the bytes of the releases after it
    time, rate = _microseconds(row), _number(row, "tflops") * factor("TFLOP/s")
    if not time > 0.0 and rate > 0.0:
        time = 2.0 * products * math.prod(arguments[name] for name in ("m", "n", "k")) / rate
    if _text(row, "source_id") in _TIMED_BY_HOST and time < _HOST * factor("us"):
        raise _Omitted("timed from the host, whose launch takes as long")
    return _parsed(row, "gemm", precision, time, arguments, software)


def _attention(row: Row) -> _Parsed:
    framework = _text(row, "framework")
    if framework not in _FLASH:
        raise _Omitted(f"{framework}: not flash attention, or superseded")
    if _text(row, "direction") == "backward":
        raise _Omitted("the backward pass without the forward pass")
    precision = _precision(row)
    size = PRECISIONS[precision].input_size
    heads, length, head_size = _number(row, "heads"), _number(row, "seq_len"), _number(row, "head_dim")
    groups = _number(row, "kv_heads")
    causal = float(_text(row, "causal").casefold() in ("true", "1", "1.0", "yes"))
    both_passes = _text(row, "direction") == "fwd+bwd"
    arguments = {
        "batch": _number(row, "batch"),
        "num_heads": heads,
        "num_query_groups": groups if groups > 0 else heads,
        "query_length": length,
        "key_length": length,
        "head_size": head_size,
        "causal": causal,
        "element_size": size,
    }
    time = _microseconds(row)
    if not time > 0.0:
        counted = (3.5 if both_passes else 1.0) * (0.5 if causal else 1.0)
        flop = counted * 4.0 * arguments["batch"] * heads * length * length * head_size
        time = flop / (_number(row, "tflops") * factor("TFLOP/s"))
    family = "attention_backward" if both_passes else "attention"
    return _parsed(row, family, precision, time, arguments, _FLASH[framework])


def _decode(row: Row) -> _Parsed:
    precision = _precision(row)
    names = ("batch", "batch"), ("num_heads", "heads"), ("num_query_groups", "kv_heads"), ("key_length", "seq_len")
    arguments = {name: _number(row, column) for name, column in (*names, ("head_size", "head_dim"))}
    arguments["kv_element_size"] = PRECISIONS[precision].input_size
    return _parsed(row, "attention_decode", precision, _microseconds(row), arguments)


def _collective(row: Row) -> _Parsed:
    family = _OPERATIONS.get(_text(row, "op"))
    if family is None:
        raise _Omitted(f"no equation stands for {_text(row, 'op') or 'the operation'}")
    notes, source = _text(row, "notes"), _text(row, "source_id")
    group, size = _number(row, "n_gpus"), _number(row, "bytes")
    if "n_gpus counts" in notes:
        group /= _RANKS_PER_CHIP.get(_text(row, "gpu"), 1.0)
        if group < 2.0 and size > _STARTS * factor("MiB"):
            raise _Omitted("between the cores of one accelerator: no network carries it")
        group = max(group, 2.0)  # how long it takes to start is the same
    spread = re.search(r"devices_per_node=(\d+)", notes)
    if spread and float(spread[1]) != group:
        raise _Omitted("between machines whose network is not described")
    if "cross-clique" in notes or "2xNVL72" in notes or (source == "ml_engineering_ar" and _number(row, "nodes") > 1):
        raise _Omitted("between machines whose network is not that of the catalog")
    if _text(row, "gpu") == "L40S":
        raise _Omitted("through the host of a machine whose topology is not stated")
    if source == "vidur_allreduce" and size < _SEEN_BY_HOST * factor("MiB"):
        raise _Omitted("timed from the host, whose launch takes longer than a message this small")
    time = _microseconds(row)
    if not time > 0.0:
        rounds = 2.0 if family == "all_reduce" else 1.0
        time = rounds * float(ring_traffic(size, group)) / (_number(row, "gbps_busbw") * factor("GB/s"))
    return _parsed(row, family, "bf16", time, {"message_size": size, "group_size": group, "stride": 1.0})


def _vector(row: Row) -> _Parsed:
    traffic, rate = _number(row, "bytes"), _number(row, "gbps_algbw")
    if traffic > 0.0 and rate > 0.0:
        return _parsed(row, "vector", "bf16", traffic / (rate * factor("GB/s")), {"traffic": traffic, "flop": 0.0})
    match = re.search(rf"raw row: ((?:{_NUMBER}, )+)({_NUMBER})", _text(row, "notes"))
    if match is None:
        raise _Omitted("no size and throughput in the notes")
    elements = math.prod(float(part) for part in match[1].split(",") if part.strip())
    time = elements / (float(match[2]) * factor("G"))
    return _parsed(row, "vector", _precision(row), time, {"traffic": 4.0 * elements, "flop": 0.0})
