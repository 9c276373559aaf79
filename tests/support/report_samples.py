"""Plans with results made by hand, in the shape that the engine gives them: what a report is tested on."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
from openpyxl import Workbook
from openpyxl.utils import column_index_from_string, range_boundaries
from openpyxl.utils.cell import coordinate_from_string
from openpyxl.worksheet.worksheet import Worksheet

from xlperf.base.units import factor
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.schema import results_of, table_schema
from xlperf.catalog.table import Table
from xlperf.workbook import style
from xlperf.workbook.package import table_name
from xlperf.workbook.report.book import report_workbook, write_report

GIB, TFLOP, TB, GB = factor("GiB"), factor("TFLOP/s"), factor("TB/s"), factor("GB/s")
BLANK = float("nan")
DAY = datetime.date(2026, 11, 21)


def table(kind: str, rows: list[dict[str, object]]) -> Table:
    """A table from rows; values are in the units used inside."""
    schema = table_schema(kind)
    columns: dict[str, np.ndarray] = {}
    for column in schema.columns:
        if any(column.name in row for row in rows):
            if column.is_text:
                columns[column.name] = np.array([row.get(column.name, "") for row in rows], dtype=object)
            else:
                columns[column.name] = np.array([row.get(column.name, BLANK) for row in rows], dtype=np.float64)
    return Table(kind, columns)


def catalog() -> Catalog:
    """A small catalog; no calibration row names Blackwell."""
    accelerators = [
        {
            "accelerator": name,
            "vendor": "NVIDIA",
            "generation": generation,
            "peak_flop_rate_fp32": 67 * TFLOP,
            "peak_flop_rate_bf16": peak * TFLOP,
            "memory_capacity": capacity * GIB,
            "memory_bandwidth": bandwidth * TB,
            "thermal_design_power": power,
            "default_network": f"{name} pod",
            "source": f"{name} datasheet",
            "year": year,
            "kind": "datasheet",
            "notes": "Dense peaks; the sparse ones that the datasheet leads with are twice as high"
            if year == 2022
            else "",
        }
        for name, generation, peak, capacity, bandwidth, power, year in (
            ("A100 80GB", "ampere", 312, 79.2, 2.039, 400, 2021),
            ("H100", "hopper", 989.4, 79.6, 3.35, 700, 2022),
            ("B200", "blackwell", 2250, 179.1, 8.0, 1000, 2024),
            ("T4", "turing", 65, 14.6, 0.3, 70, 2018),
        )
    ]
    networks = [
        {
            "network": f"{name} pod",
            "tier": tier,
            "size": size,
            "topology": topology,
            "link_bandwidth": bandwidth * GB,
            "latency": latency * factor("us"),
            "source": "system guide",
            "year": 2023,
            "kind": "datasheet",
        }
        for name, fast in (("A100 80GB", 300), ("H100", 450), ("B200", 900), ("T4", 16))
        for tier, size, topology, bandwidth, latency in ((1, 8, "switch", fast, 1.0), (2, 4096, "fat-tree", 50, 5.0))
    ]
    models = [
        {
            "model": name,
            "num_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "ffn_hidden_size": ffn,
            "vocab_size": 128256,
            "gated_mlp": 1.0,
            "stated_parameters": size * factor("G"),
            "source": "model card",
            "year": 2024,
            "kind": "datasheet",
        }
        for name, layers, hidden, heads, ffn, size in (
            ("Llama 3.1 8B", 32, 4096, 32, 14336, 8.03),
            ("Llama 3.1 70B", 80, 8192, 64, 28672, 70.6),
            ("Llama 3.1 405B", 126, 16384, 128, 53248, 405.9),
            ("GPT-3 175B", 96, 12288, 96, 49152, 174.6),
            ("never planned", 1, 64, 1, 64, 0.001),
        )
    ]
    prices = [
        {
            "price": name,
            "rental_price": price * factor("USD/h"),
            "source": "market survey",
            "year": 2026,
            "kind": "estimate",
        }
        for name, price in (("A100 80GB", 0.9), ("H100", 1.69), ("B200", 2.34))
    ]
    calibration = [
        {
            "calibration": f"gemm/{generation}/any/any/{constant}",
            "family": "gemm",
            "generation": generation,
            "precision": "any",
            "software": "any",
            "constant": constant,
            "value": value,
            "unit": "-",
            "num_rows": 40,
            "error": 0.04,
            "date": "2026-11-01",
            "source": "kernel benchmarks",
            "year": 2025,
            "kind": "measured",
        }
        for generation in ("ampere", "hopper", "turing")
        for constant, value in (("compute_efficiency", 0.78), ("memory_efficiency", 0.86))
    ]
    kinds = {
        "accelerators": accelerators,
        "networks": networks,
        "models": models,
        "prices": prices,
        "calibration": calibration,
    }
    return Catalog.from_tables([table(kind, rows) for kind, rows in kinds.items()], "samples.xlsx")


_SIZE = {"Llama 3.1 8B": 8.03, "Llama 3.1 70B": 70.6, "Llama 3.1 405B": 405.9, "GPT-3 175B": 174.6}
_PEAK = {"A100 80GB": 312.0, "H100": 989.4, "B200": 2250.0}
_CAPACITY = {"A100 80GB": 79.2, "H100": 79.6, "B200": 179.1}
_PRICE = {"A100 80GB": 0.9, "H100": 1.69, "B200": 2.34}
_POWER = {"A100 80GB": 400.0, "H100": 700.0, "B200": 1000.0}


def training(count: int = 26) -> tuple[Table, Table]:
    """Training plans and results: most fit, some are too large, the last two are refused; a name starts with =."""
    plans: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    models, accelerators = list(_SIZE), list(_PEAK)
    for i in range(count):
        model, accelerator = models[i % 4], accelerators[(i // 4) % 3]
        ranks = [8, 64, 512, 1024][i % 4] * (1 + i // 12)
        tensor, pipeline = [1, 4, 8, 8][i % 4], [1, 2, 8, 8][i % 4]
        name = f"{model}, {ranks} x {accelerator}" if i % 5 else ""
        plan: dict[str, object] = {
            "name": "=1+1 is a name" if i == 3 else name,
            "model": model,
            "accelerator": accelerator,
            "num_accelerators": ranks,
            "software": "megatron",
            "tensor_parallel": tensor,
            "sequence_parallel": float(tensor > 1),
            "pipeline_parallel": pipeline,
            "global_batch_size": 1024,
            "micro_batch_size": 1 + i % 2,
            "sequence_length": 4096,
            "precision": "bf16",
            "recompute": ["none", "selective", "full"][i % 3],
        }
        plans.append(plan)
        if i >= count - 2:
            results.append({"reason": f"tensor_parallel {tensor} does not divide the 7 query groups of {model}"})
            continue
        tokens = 1024 * 4096.0
        work = 6 * _SIZE[model] * factor("G") * tokens / ranks / (_PEAK[accelerator] * TFLOP)
        parts = {
            "time_forward": work / 3 / 0.7,
            "time_backward": work / 1.5 / 0.68,
            "time_recompute": work / 3 / 0.7 if i % 3 == 2 else 0.0,
            "time_tensor_parallel": 0.12 * work * np.log2(tensor),
            "time_context_parallel": 0.0,
            "time_expert_parallel": 0.0,
            "time_pipeline_communication": 0.01 * work * (pipeline - 1),
            "time_pipeline_bubble": work * (pipeline - 1) / (8 + 8 * (i % 3)),
            "time_data_parallel": 0.05 * work,
            "time_optimizer": 0.01 * work,
            "time_overhead": 0.02 * work,
        }
        step = sum(parts.values())
        capacity = _CAPACITY[accelerator] * GIB
        weights = 2 * _SIZE[model] * factor("G") / (tensor * pipeline)
        memory = {
            "memory_weights": weights,
            "memory_gradients": weights,
            "memory_optimizer": 6 * weights / 4,
            "memory_activations": 12 * GIB + (7 + i % 5) * GIB,
        }
        total = sum(memory.values())
        reserved = 1.06 * total + GIB
        fits = reserved <= capacity
        results.append(
            {
                "step_time": step,
                "step_time_low": 0.93 * step,
                "step_time_high": 1.08 * step,
                "tokens_per_second": tokens / step,
                "tokens_per_second_per_accelerator": tokens / step / ranks,
                "model_flop_rate": work / step * _PEAK[accelerator] * TFLOP,
                "mfu": work / step,
                "hfu": work / step * (4 / 3 if i % 3 == 2 else 1.0),
                "memory": total,
                **memory,
                "memory_reserved": reserved,
                "memory_capacity": capacity,
                "fits": float(fits),
                **parts,
                "energy_per_token": _POWER[accelerator] * 1.25 * ranks * step / tokens,
                "cost_per_million_tokens": _PRICE[accelerator] * factor("USD/h") * ranks * step / tokens,
                "reason": ("" if fits else f"needs {reserved / GIB:.1f} GiB of {capacity / GIB:.1f} GiB; ")
                + ("calibration extrapolated from hopper" if accelerator == "B200" else ""),
            }
        )
    return table("training", plans), full(table("training_results", results))


def inference(count: int = 24) -> tuple[Table, Table]:
    """Inference plans and results; one does not fit."""
    plans: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    models, accelerators = list(_SIZE)[:2], list(_PEAK)
    for i in range(count):
        model, accelerator = models[i % 2], accelerators[(i // 2) % 3]
        tensor, batch = [1, 2, 4, 8][(i // 6) % 4], [1, 16, 64, 8][i % 4]
        prompt, output = [200, 2000, 1024][i % 3], [200, 256, 1024][i % 3]
        plans.append(
            {
                "name": f"{model} TP{tensor} batch {batch} on {accelerator}",
                "model": model,
                "accelerator": accelerator,
                "num_accelerators": tensor,
                "software": "tensorrt-llm",
                "tensor_parallel": tensor,
                "prompt_length": prompt,
                "output_length": output,
                "batch_size": batch,
                "precision": "bf16",
            }
        )
        size = 2 * _SIZE[model] * factor("G") / tensor
        bandwidth = {"A100 80GB": 2.039, "H100": 3.35, "B200": 8.0}[accelerator] * TB
        parts = {
            "time_matrix": size / bandwidth / 0.85,
            "time_attention": 2e-5 * batch * prompt / 200,
            "time_vector": 4e-4,
            "time_communication": 6e-4 * np.log2(tensor),
            "time_overhead": 3e-4,
        }
        tpot = sum(parts.values())
        prefill = batch * prompt * 2 * _SIZE[model] * factor("G") / tensor / (_PEAK[accelerator] * TFLOP) / 0.6
        latency = prefill + (output - 1) * tpot
        cache = batch * (prompt + output) * 1.6e5 / tensor
        memory = {"memory_weights": size, "memory_kv_cache": cache, "memory_activations": 0.8 * GIB}
        total = sum(memory.values())
        capacity = _CAPACITY[accelerator] * GIB
        rate = batch * output / latency
        dollars = _PRICE[accelerator] * factor("USD/h") * tensor
        results.append(
            {
                "ttft": prefill,
                "tpot": tpot,
                "tpot_low": 0.9 * tpot,
                "tpot_high": 1.12 * tpot,
                "tpot_itl": latency / output,
                "latency": latency,
                "tokens_per_second": rate,
                "tokens_per_second_per_accelerator": rate / tensor,
                "tokens_per_second_per_megawatt": rate / (tensor * _POWER[accelerator] * 1.25),
                "memory": total,
                **memory,
                "memory_capacity": capacity,
                "max_batch_size": np.floor(max(0.0, 0.9 * capacity - size) / (cache / batch)),
                "fits": float(total <= 0.9 * capacity),
                "bound": "memory" if batch < 64 else "compute",
                "prefill_time": prefill,
                "decode_time": latency - prefill,
                **parts,
                "energy_per_token": _POWER[accelerator] * 1.25 * tensor / rate,
                "cost_per_million_input_tokens": dollars * prefill / (batch * prompt),
                "cost_per_million_output_tokens": dollars * (latency - prefill) / (batch * output),
                "reason": "" if total <= 0.9 * capacity else "weights and cache need more than 90 % of the memory",
            }
        )
    return table("inference", plans), full(table("inference_results", results))


def full(results: Table) -> Table:
    """Results with every column of the schema, those not set blank."""
    columns = dict(results.columns)
    for column in results_of(results.kind.removesuffix("_results")).columns:
        if column.name not in columns:
            blank = np.full(len(results), "" if column.is_text else BLANK, dtype=object if column.is_text else float)
            columns[column.name] = blank
    return Table(results.kind, columns)


def explain(plans: Table, catalog_: Catalog, row: int = 0) -> Table:
    """Operators of one plan: products on either side of the ridge, a vector kernel and a collective."""
    peak = _PEAK[str(plans["accelerator"][row])] * TFLOP
    bandwidth = float(catalog_.tables["accelerators"]["memory_bandwidth"][list(_PEAK).index(plans["accelerator"][row])])
    phases = ("forward", "backward") if plans.kind == "training" else ("prefill", "decode")
    rows: list[dict[str, object]] = []
    for phase in phases:
        depth = 16.0 if phase == "decode" else 8192.0
        shapes = (("query key value", 6144.0), ("attention output", 4096.0), ("up and gate", 28672.0), ("down", 4096.0))
        for name, width in shapes:
            flop = 2 * depth * width * 4096
            traffic = 2 * (depth * width + depth * 4096 + width * 4096)
            time = max(flop / (0.75 * peak), traffic / (0.85 * bandwidth)) + 4e-6
            compute = flop / peak > traffic / bandwidth
            rows.append(
                {
                    "phase": phase,
                    "operator": name,
                    "family": "gemm",
                    "calls": 80,
                    "m": depth,
                    "n": width,
                    "k": 4096,
                    "batch": 1,
                    "flop": flop,
                    "traffic": traffic,
                    "arithmetic_intensity": flop / traffic,
                    "time": time,
                    "total_time": 80 * time,
                    "bound": "compute" if compute else "memory",
                }
            )
        traffic = 6 * depth * 4096
        rows.append(
            {
                "phase": phase,
                "operator": "normalisation",
                "family": "vector",
                "calls": 160,
                "flop": 2 * traffic,
                "traffic": traffic,
                "arithmetic_intensity": 2.0,
                "time": traffic / bandwidth + 3e-6,
                "total_time": 160 * (traffic / bandwidth + 3e-6),
                "bound": "memory",
            }
        )
        rows.append(
            {
                "phase": phase,
                "operator": "all-reduce of activations",
                "family": "all_reduce",
                "calls": 160,
                "flop": 0.0,
                "traffic": 2 * depth * 4096,
                "time": 2e-5,
                "total_time": 160 * 2e-5,
                "bound": "network",
            }
        )
    return table("operators", rows)


def limits(plans: Table, catalog_: Catalog) -> tuple[Table, Table]:
    """A plan with 1, 4 and 16 requests: each user is served half as fast as with a quarter of the requests."""
    requests = np.array([1.0, 4.0, 16.0])
    repeated = plans.take(np.zeros(3, dtype=np.int64))
    user = 100.0 / np.sqrt(requests)
    result = {
        "tokens_per_second_per_user": user,
        "tokens_per_second_per_accelerator": user * requests / plans["num_accelerators"],
        "tokens_per_second": user * requests,
        "tpot": 1.0 / user,
        "ttft": 0.1 * requests,
        "max_batch_size": np.full(3, 16.0),
        "running_batch": requests,
    }
    loaded = Table("inference", {**repeated.columns, "concurrency": requests})
    return loaded, full(Table("inference_results", result))


def write(path: Path, study: str = "") -> None:
    """Write the report of all samples."""
    (plans, results), (more_plans, more_results) = training(), inference()
    tables, computed = [plans, more_plans], [results, more_results]
    write_report(path, catalog(), tables, computed, date=DAY, study=study, explain=explain, limits=limits)


def made_of(plans: Table, results: Table) -> Workbook:
    """The report of plans of one kind."""
    return report_workbook(catalog(), [plans], [results], date=DAY, explain=explain, limits=limits)


def records(sheet: Worksheet, table: str | None = None) -> list[dict[str, object]]:
    """Rows of a native table by header."""
    result = sheet.tables[table or table_name(sheet.title)]
    header, *rows = sheet[result.ref]
    return [{str(h.value): cell.value for h, cell in zip(header, row, strict=True)} for row in rows]


def words(sheet: Worksheet) -> str:
    """All text of a sheet."""
    return "\n".join(str(cell.value) for row in sheet.iter_rows() for cell in row if cell.value is not None)


def faults_on_paper(sheet: Worksheet) -> list[str]:
    """What paper or Excel would cut of the charts of a sheet that was just made.

    A page that ends inside a chart, by itself or by a break; a chart wider than the print area in the narrowest font;
    an offset beyond the column that a chart is anchored to.
    """
    inside: Any = sheet
    result, spans, wide = [], [], 0.0
    for number, chart in enumerate(inside._charts, start=1):
        if isinstance(chart.anchor, str):
            letter, row = coordinate_from_string(chart.anchor)
            column, rest = column_index_from_string(letter) - 1, 0.0
        else:
            column, row = chart.anchor._from.col, chart.anchor._from.row + 1
            rest = chart.anchor._from.colOff / EMU_PER_CM
            if rest > style.CM_PER_LETTER * style.width_of(sheet, column + 1, column + 1):
                result.append(f"chart {number} is {rest:.1f} cm beyond the start of column {column + 1}")
        right = style.CM_PER_LETTER * style.width_of(sheet, 1, column) + rest + chart.width
        last = row
        while style.height_of(sheet, row, last) < chart.height:
            last += 1
        spans.append((row, last, right))
        wide = max(wide, right)
    printed_areas = [area.rpartition("!")[2].replace("$", "") for area in str(sheet.print_area or "").split(",")]
    areas = [range_boundaries(area) for area in printed_areas if area]
    for first, last, right in spans:
        printed = [area for area in areas if int(area[1] or 1) <= first <= int(area[3] or 1)]
        if printed and right > style.CM_PER_LETTER * style.width_of(sheet, 1, int(printed[0][2] or 1)):
            result.append(f"the chart of row {first} is wider than what is printed")
        if any(first <= each.id < last for each in sheet.row_breaks.brk):
            result.append(f"a page ends inside the chart of row {first}")
    if sheet.page_setup.fitToHeight == 0 and not areas:
        wide = max(wide, style.CM_PER_LETTER * style.width_of(sheet, 1, sheet.max_column))
        ends, used = {each.id for each in sheet.row_breaks.brk}, 0.0
        for row in range(1, sheet.max_row + 1):
            used += style.height_of(sheet, row, row)
            if used > style.page_height(wide):
                result += [f"row {row} begins a page inside a chart" for first, last, _ in spans if first < row <= last]
                used = style.height_of(sheet, row, row)
            if row in ends:
                used = 0.0
    return result


EMU_PER_CM = 360000
