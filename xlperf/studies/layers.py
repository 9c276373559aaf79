"""Studies of a model: limits of GEMMs, recomputation, flash attention, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from xlperf.base.units import UNITS
from xlperf.catalog.schema import grouped
from xlperf.catalog.table import Table
from xlperf.engine import evaluate, explain
from xlperf.engine.join import join
from xlperf.equations.model.operators import parameter_count
from xlperf.studies import outcome

_FAMILIES = ("gemm", "attention", "attention_decode", "attention_latent")


def gemm_bounds(inputs: outcome.Inputs) -> outcome.Outcome:
    """Limit of each operator of the plans, and the batch at which a decode step becomes compute-bound."""
    plans = inputs.table("inference")
    results = evaluate(plans, inputs.catalog)
    names = [str(name) for name in plans.text("name")]
    legal = map(int, np.flatnonzero(np.isfinite(results["tpot"])))
    operators = {row: _operators(plans, inputs, row) for row in legal}
    used = [names[row] for row in operators]
    bounds = _bounds(operators, names)
    batch = _batches(inputs, plans, list(operators), names)
    sheets = [bounds, _times(operators, names), batch]
    if operators:
        sheets.append(_detail(inputs, plans, operators, names))
    sizes = inputs.numbers("batch_sizes")
    findings = [*_gemm_short(plans, bounds, batch, used), *_findings(bounds, used), _batch_finding(batch, used, sizes)]
    return outcome.Outcome(findings, sheets, inputs.catalog, [(plans, results)])


def _operators(plans: Table, inputs: outcome.Inputs, row: int) -> Table:
    table = explain(plans, inputs.catalog, row)
    return table.take(np.flatnonzero([str(family) in _FAMILIES for family in table["family"]]))


def _filled(keys: Sequence[str], series: Sequence[str], values: Mapping[tuple[str, str], object]) -> list[list[object]]:
    return [[values.get((key, name)) for name in series] for key in keys]


def _bounds(operators: Mapping[int, Table], names: Sequence[str]) -> outcome.StudySheet:
    limits: dict[tuple[str, str], object] = {}
    used: list[str] = []
    for row, table in operators.items():
        for name, column in ((names[row], "bound"), (_ideal(names[row]), "ideal_bound")):
            for phase, operator, bound in zip(table["phase"], table["operator"], table[column], strict=True):
                limits[f"{phase}: {operator}", name] = bound
            used.append(name)
    keys = outcome.positions(key for key, _ in limits)[0]
    columns = zip(*_filled(keys, used, limits), strict=True)
    return outcome.sheet_of("bounds", [("operator", keys), *zip(used, columns, strict=True)])


def _ideal(plan: str) -> str:
    """Column of a plan's limits on the ideal roofline."""
    return f"{plan}, ideal"


def _detail(
    inputs: outcome.Inputs, plans: Table, operators: Mapping[int, Table], names: Sequence[str]
) -> outcome.StudySheet:
    machines = inputs.catalog.tables["accelerators"]
    index = inputs.catalog.rows("accelerators", plans["accelerator"], plans, "accelerator")
    parts = list(operators.values())
    table = Table(parts[0].kind, {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns})
    rows = np.repeat(list(operators), [len(part) for part in parts])
    peak, bandwidth = outcome.peak_rates(plans, inputs.catalog)[rows], machines["memory_bandwidth"][index[rows]]
    time, flop, traffic = table["time"], table["flop"], table["traffic"]
    fields = table.schema.by_name
    plan = [names[row] for row in rows]
    words = zip(plan, table["phase"], table["operator"], strict=True)
    return outcome.sheet_of(
        "operators",
        [
            ("key", [f"{name}: {phase} {operator}" for name, phase, operator in words]),
            ("plan", plan),
            ("phase", table["phase"]),
            ("operator", table["operator"]),
            *outcome.result_columns(table, ("m", "n", "k", "flop", "traffic")),
            (fields["arithmetic_intensity"], flop / traffic),
            ("ridge", peak / bandwidth),
            *outcome.result_columns(table, ("ideal_time", "tile_time", "efficiency_time", "power_time", "time")),
            ("share_of_peak_rate", flop / time / peak),
            ("share_of_memory_bandwidth", traffic / time / bandwidth),
            *((fields[name], table[name]) for name in ("bound", "ideal_bound")),
        ],
    )


def _times(operators: Mapping[int, Table], names: Sequence[str]) -> outcome.StudySheet:
    """Time of a layer's operators in both phases by machine."""
    times: dict[tuple[str, str], object] = {}
    for row, table in operators.items():
        for phase, operator, time in zip(table["phase"], table["operator"], outcome.shown(table, "time"), strict=True):
            if operator != "logits":
                times[f"{names[row]}, {phase}", str(operator).replace(" ", "_")] = float(time)
    keys, series = (outcome.positions(entry[i] for entry in times)[0] for i in (0, 1))
    return outcome.pivot_of("times", "plan", keys, series, _filled(keys, series, times))


def _batches(inputs: outcome.Inputs, plans: Table, legal: Sequence[int], names: Sequence[str]) -> outcome.StudySheet:
    """The smallest batch at which each GEMM of a decode step is compute-bound, on each machine."""
    turns: dict[tuple[str, str], object] = {}
    seen: list[str] = []
    for row in legal:
        for size in sorted(inputs.numbers("batch_sizes")):
            columns = {name: values[[row]].copy() for name, values in plans.columns.items()}
            table = _operators(replace(plans, columns={**columns, "batch_size": np.array([size])}), inputs, 0)
            for phase, operator, bound in zip(table["phase"], table["operator"], table["bound"], strict=True):
                if phase == "decode":
                    seen.append(str(operator))
                    if bound == "compute":
                        turns.setdefault((str(operator), names[row]), size)
    keys, used = outcome.positions(seen)[0], [names[row] for row in legal]
    return outcome.pivot_of("batch", "operator", keys, used, _filled(keys, used, turns))


def _compute_bound(bounds: outcome.StudySheet, plan: str, phase: str) -> tuple[int, int]:
    """Compute-bound operators of a phase of a plan, and all operators."""
    keys, limits = bounds.values("operator"), bounds.values(plan)
    of_phase = [limit for key, limit in zip(keys, limits, strict=True) if str(key).startswith(phase)]
    return of_phase.count("compute"), len(of_phase)


def _least_batches(batch: outcome.StudySheet, used: Sequence[str]) -> dict[str, float]:
    """Smallest batch with a compute-bound GEMM in decode, by plan; NaN if there is none."""
    gemm = np.array([key != "attention" for key in batch.values("operator")])
    return {name: float(np.fmin.reduce(batch.numbers(name)[gemm], initial=np.nan)) for name in used}


def _gemm_short(
    plans: Table, bounds: outcome.StudySheet, batch: outcome.StudySheet, used: Sequence[str]
) -> Iterator[outcome.Finding]:
    if not used:
        return
    counts = {name: _compute_bound(bounds, name, "prefill") for name in used}
    most, least = (pick(used, key=lambda name: counts[name][0]) for pick in (max, min))
    decode = sum(_compute_bound(bounds, name, "decode")[0] for name in used)
    size = outcome.span(np.unique(plans.number("batch_size")))
    first = (
        f"of the GEMMs and attention of a prefill {counts[most][0]} of {counts[most][1]} are compute-bound on "
        f"{_machine(most)} and {counts[least][0]} of {counts[least][1]} on {_machine(least)}, of a decode step at "
        f"batch {size} {f'{decode} on all machines' if decode else 'none on any machine'}"
    )
    known = {name: size for name, size in _least_batches(batch, used).items() if size == size}
    second = "no batch tried makes a GEMM of decode compute-bound"
    if known:
        low, high = (pick(known, key=lambda name: known[name]) for pick in (min, max))
        second = (
            f"a GEMM of decode becomes compute-bound at a batch of {known[low]:.0f} on {_machine(low)} and of "
            f"{known[high]:.0f} on {_machine(high)}"
        )
    yield outcome.in_short(first, second)


def _findings(bounds: outcome.StudySheet, used: Sequence[str]) -> Iterator[outcome.Finding]:
    for phase in ("prefill", "decode"):
        counts, ideal = ({name: _compute_bound(bounds, of(name), phase) for name in used} for of in (str, _ideal))
        parts = [f"{compute} of {every} on {_machine(name)}" for name, (compute, every) in counts.items()]
        any_bound = any(compute for compute, _ in counts.values())
        words = f"Compute-bound operators: {', '.join(parts) if any_bound else 'none on any machine'}"
        others = [f"{ideal[name][0]} on {_machine(name)}" for name in used if ideal[name] != counts[name]]
        beside = ", ".join(others) + ("; on the others the same" if len(others) < len(used) else "")
        yield outcome.Finding(phase.capitalize(), f"{words}; by the ideal roofline {beside if others else 'the same'}.")


def _batch_finding(batch: outcome.StudySheet, used: Sequence[str], sizes: Sequence[float]) -> outcome.Finding:
    parts = [
        f"{f'{least:.0f}' if least == least else f'none up to {max(sizes):.0f}'} on {_machine(name)}"
        for name, least in _least_batches(batch, used).items()
    ]
    return outcome.Finding("Batch", f"Smallest batch at which a GEMM of decode is compute-bound: {', '.join(parts)}.")


def _machine(plan: str) -> str:
    return plan.rpartition(" on ")[2]


_PARTS = grouped("training_results", "memory")


def recompute(inputs: outcome.Inputs) -> outcome.Outcome:
    """Time cost and memory saving of activation recomputation."""
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    fields = ("step_time", "time_recompute", "hfu", "mfu", *_PARTS, "memory", "memory_capacity", "fits")
    columns = [("plan", plans.text("name")), ("recompute", plans.text("recompute", "none"))]
    sheet = outcome.sheet_of("recompute", [*columns, *outcome.result_columns(results, fields)], series=_PARTS)
    return outcome.Outcome(list(_recompute_findings(plans, results)), [sheet], inputs.catalog, [(plans, results)])


def _recompute_findings(plans: Table, results: Table) -> Iterator[outcome.Finding]:
    modes = plans.text("recompute", "none")
    groups = outcome.comparable(plans, "recompute", "recompute_modules", "recompute_layers", "recompute_group")
    activations, step, fits = results["memory_activations"], results["step_time"], results.number("fits")
    changes: dict[str, list[tuple[float, float]]] = {"selective": [], "full": []}
    rescued, short_of = dict.fromkeys(changes, 0), 0
    for group in range(max(groups, default=-1) + 1):
        row = {str(modes[i]): i for i in np.flatnonzero(groups == group)}
        none = row.get("none")
        if none is None:
            continue
        short_of += bool(fits[none] == 0)
        for mode, values in changes.items():
            at = row.get(mode)
            if at is not None and np.isfinite(step[[at, none]]).all():
                values.append((1 - activations[at] / activations[none], step[at] / step[none] - 1))
            rescued[mode] += bool(fits[none] == 0 and at is not None and fits[at] == 1)
    # lowest, median and highest saving and slow-down of each mode [%]
    shares = {mode: 100.0 * np.array(pairs) for mode, pairs in changes.items() if pairs}
    ends = {mode: np.quantile(each, (0.0, 0.5, 1.0), axis=0).T for mode, each in shares.items()}
    if len(ends) == len(changes):
        saved, slower = ([each[i][1] for each in ends.values()] for i in (0, 1))
        facts = {"plans": len(changes["full"]), "short_of": short_of, "rescued": rescued}
        yield outcome.finding("recompute short", saved=saved, slower=slower, **facts)
    for mode, (saved, slower) in ends.items():
        tone = "good" if mode == "selective" else "plain"
        yield outcome.finding("recompute", tone, mode=mode.capitalize(), saved=saved, slower=slower)
    if not ends:
        yield outcome.finding("no recompute")


def flash_attention(inputs: outcome.Inputs) -> outcome.Outcome:
    """Flash against standard attention: time, memory traffic and memory over the sequence length."""
    plans = inputs.table("training")
    results = evaluate(plans, inputs.catalog)
    attention, groups = plans.text("attention", "flash"), outcome.comparable(plans, "attention")
    flash_of = {groups[i]: i for i in range(len(plans)) if attention[i] == "flash"}
    pairs = [(i, flash_of[g]) for i, g in enumerate(groups) if attention[i] != "flash" and g in flash_of]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    machine, length = plans["accelerator"][both[0]], plans["sequence_length"][both[0]]
    # of each pair: the plan with standard attention, then with flash attention
    step, mfu, fits = (results[name][both] for name in ("step_time", "mfu", "fits"))
    activations = outcome.shown(results, "memory_activations")[both]
    speed, shrunk = step[0] / step[1], activations[0] / activations[1]
    columns: outcome.Columns = [
        ("case", [f"{name}, {tokens:.0f} tokens" for name, tokens in zip(machine, length, strict=True)]),
        ("accelerator", machine),
        ("sequence_length", length),
        *zip(("standard_step_time", "flash_step_time"), step, strict=True),
        ("speed_up", speed),
        *zip(("standard_activations", "flash_activations"), activations, strict=True),
        ("activations_ratio", shrunk),
        *zip(("standard_mfu", "flash_mfu"), mfu, strict=True),
        *zip(("standard_fits", "flash_fits"), np.where(fits == 1, "yes", "no"), strict=True),
    ]
    findings: list[outcome.Finding] = []
    if pairs:
        lengths = length.min(), length.max()
        short, long = (outcome.span(speed[length == end], digits) for end, digits in zip(lengths, (2, 1), strict=True))
        rescued = int(np.sum((fits[0] == 0) & (fits[1] == 1)))
        facts = {"shrunk": outcome.span(shrunk, 1), "rescued": rescued, "cases": len(pairs)}
        findings.append(outcome.finding("flash short", short=short, long=long, lengths=lengths, **facts))
    for name in dict.fromkeys(machine):
        cases = np.flatnonzero(machine == name)
        cases = cases[np.argsort(length[cases], kind="stable")]
        ends = cases[[0, -1]]
        gain = {"speed": speed[ends], "length": length[ends], "shrunk": shrunk[ends]}
        findings.append(outcome.finding("flash gain", name=name, **gain))
        if (shrunk[cases] >= 2).any():
            findings.append(outcome.finding("flash knee", name=name, knee=min(length[cases][shrunk[cases] >= 2])))
    return outcome.Outcome(findings, [outcome.sheet_of("attention", columns)], inputs.catalog, [(plans, results)])


_RATE = "tokens_per_second_per_accelerator"
_DENSE = "dense, equal active"


def mixtures(inputs: outcome.Inputs) -> outcome.Outcome:
    """Training rate and decode time of dense models and mixtures, and the rate over the width of expert parallelism."""
    catalog = inputs.catalog
    training, inference = inputs.table("training"), inputs.table("inference")
    trained, served = evaluate(training, catalog), evaluate(inference, catalog)
    models, model = outcome.positions(training.text("model"))
    rate = trained[_RATE]
    candidates = np.where(np.isfinite(rate) & (trained.number("fits") == 1), rate, -np.inf)
    grid = np.where(model == np.arange(len(models))[:, None], candidates, -np.inf)
    best = np.argmax(grid, axis=1)[np.isfinite(grid.max(axis=1))]
    joined = join(training, catalog).model
    giga = UNITS["G"].factor
    names = ("step_time", _RATE, "mfu", "time_expert_parallel", "memory_reserved", "cost_per_million_tokens")
    experts = outcome.sheet_of(
        "experts",
        [
            ("model", training.text("model")[best]),
            ("parameters", (parameter_count(joined) / giga)[best]),
            ("active_parameters", (parameter_count(joined, experts_per_token=True) / giga)[best]),
            ("expert_parallel", training.filled("expert_parallel")[best]),
            *outcome.result_columns(trained, names, best),
        ],
    )
    widths, decode = _widths(training, trained), _decode(inference, served)
    findings = [*_short(experts, decode), *_training_findings(experts), *_decode_findings(decode)]
    findings += _width_findings(widths)
    return outcome.Outcome(findings, [experts, widths, decode], catalog, [(training, trained), (inference, served)])


def _pivot(rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows in rising order, and values by row and column, NaN if missing."""
    keys, row = np.unique(rows, return_inverse=True)
    table = np.full((len(keys), int(columns.max(initial=-1)) + 1), np.nan)
    table[row, columns] = values
    return keys, table


def _widths(training: Table, trained: Table) -> outcome.StudySheet:
    """Rate and exposed all-to-all over the width of expert parallelism, for models with plans at several widths."""
    models, model = outcome.positions(training.text("model"))
    width, rate = training.filled("expert_parallel"), trained[_RATE]
    varied = [i for i in range(len(models)) if len(np.unique(width[model == i])) > 1]
    selected = np.isin(model, varied)
    share = trained["time_expert_parallel"] / trained["step_time"]
    keys, rates = _pivot(width[selected], model[selected], rate[selected])
    _, shares = _pivot(width[selected], model[selected], np.where(np.isfinite(rate), share, np.nan)[selected])
    rate_names, share_names = ([f"{word}_{models[i]}" for i in varied] for word in ("rate", "share"))
    return outcome.sheet_of(
        "width",
        [
            ("expert_parallel", keys),
            *zip(rate_names, rates.T[varied], strict=True),
            *zip(share_names, shares.T[varied], strict=True),
        ],
        [*outcome.charts_of("width: rate", rate_names), *outcome.charts_of("width: share", share_names)],
    )


def _decode(inference: Table, served: Table) -> outcome.StudySheet:
    models, model = outcome.positions(inference.text("model"))
    keys, times = _pivot(inference["batch_size"], model, outcome.shown(served, "tpot"))
    return outcome.pivot_of("decode", "batch", keys, models, times)


def _is_mixture(name: str) -> bool:
    return "experts," in name and not name.startswith("dense")


def _short(experts: outcome.StudySheet, decode: outcome.StudySheet) -> Iterator[outcome.Finding]:
    """The fastest mixture to train beside the dense models, and its tokens at the smallest and largest batch."""
    size, rate = _by_model(experts, "parameters"), _by_model(experts, _RATE)
    served = {column.name for column in decode.columns}
    mixtures = {name for name in filter(_is_mixture, size) if _twin(name) in rate} & served
    if _DENSE not in rate or _DENSE not in served or not mixtures:
        return
    name = max(mixtures, key=lambda name: size[name])
    batch, ratio = decode.numbers("batch"), decode.numbers(name) / decode.numbers(_DENSE)
    places = sorted({0, int(np.nanargmax(ratio)), len(batch) - 1})
    slower = ", ".join(f"{ratio[at]:.1f} times as long at batch {batch[at]:.0f}" for at in places)
    larger, to_dense, to_twin = size[name] / size[_DENSE], rate[name] / rate[_DENSE], rate[name] / rate[_twin(name)]
    facts = {"larger": larger, "to_dense": to_dense, "to_twin": to_twin, "slower": slower}
    yield outcome.finding("mixture short", name=name, **facts)


def _by_model(experts: outcome.StudySheet, column: str) -> dict[str, float]:
    return dict(zip(map(str, experts.values("model")), experts.numbers(column).tolist(), strict=True))


def _twin(mixture: str) -> str:
    """Dense model with as many parameters as a mixture."""
    return f"dense, equal total to {mixture.partition(',')[0]}"


def _training_findings(experts: outcome.StudySheet) -> Iterator[outcome.Finding]:
    size, rate = _by_model(experts, "parameters"), _by_model(experts, _RATE)
    dense = next((name for name in size if name.startswith(_DENSE)), "")
    for name in filter(_is_mixture, size if dense else ()):
        words = f"{name}: {size[name] / size[dense]:.1f} times the parameters of the dense model of equal active size "
        words += f"at {rate[name] / rate[dense]:.2f} times its rate"
        if (twin := _twin(name)) in rate:
            words += f", and {rate[name] / rate[twin]:.1f} times the rate of the dense one of equal total size"
        yield outcome.Finding("Training", f"{words}.", "good")


def _decode_findings(decode: outcome.StudySheet) -> Iterator[outcome.Finding]:
    names = [column.name for column in decode.columns]
    if _DENSE in names:
        batch, dense = decode.numbers("batch"), decode.numbers(_DENSE)
        ratios = {name: decode.numbers(name) / dense for name in names[1:] if _is_mixture(name)}
        parts = [
            f"{name} {ratio[0]:.2f} at batch {batch[0]:.0f} and {ratio[-1]:.2f} at {batch[-1]:.0f}"
            for name, ratio in ratios.items()
        ]
        words = "Time per token over that of the dense model of equal active size"
        yield outcome.Finding("Decode", f"{words}: {'; '.join(parts)}.")


def _width_findings(widths: outcome.StudySheet) -> Iterator[outcome.Finding]:
    for column in widths.columns:
        rate, width = widths.numbers(column.name), widths.numbers("expert_parallel")
        rate, width = rate[np.isfinite(rate)], width[np.isfinite(rate)]
        if column.name.startswith("rate_") and len(rate):
            best = max(rate)
            words = (
                f"{column.name.removeprefix('rate_')}: expert parallel {width[rate == best][-1]:.0f} trains fastest, "
            )
            words += f"{best:,.0f} tokens per second per accelerator"
            short = f"; the widest, {width[-1]:.0f}, reaches {rate[-1] / best:.2f} of it"
            words += f"{short if rate[-1] < best else ', the widest that was tried'}."
            yield outcome.Finding("Width", words)
