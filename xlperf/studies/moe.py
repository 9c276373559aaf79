"""Study moe: dense models against mixtures of experts of equal active and of equal total parameters; width of EP."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from xlperf.base.units import UNITS
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.engine.join import join
from xlperf.equations.model.operators import parameter_count
from xlperf.studies.outcome import (
    Chart,
    Finding,
    Inputs,
    Outcome,
    StudySheet,
    in_short,
    own_column,
    pivot_of,
    positions,
    result_columns,
    sheet_of,
    shown,
)

_RATE = "tokens_per_second_per_accelerator"
_DENSE = "dense, equal active"


def analyse(inputs: Inputs) -> Outcome:
    """Training rate and decode time of dense models and mixtures, and the rate over the width of expert parallelism."""
    catalog = inputs.catalog
    training, inference = inputs.table("training"), inputs.table("inference")
    trained, served = evaluate(training, catalog), evaluate(inference, catalog)
    models, model = positions(training.text("model"))
    rate = trained[_RATE]
    candidates = np.where(np.isfinite(rate) & (trained.number("fits") == 1), rate, -np.inf)
    grid = np.where(model == np.arange(len(models))[:, None], candidates, -np.inf)
    best = np.argmax(grid, axis=1)[np.isfinite(grid.max(axis=1))]
    joined = join(training, catalog).model
    giga = UNITS["G"].factor
    experts = sheet_of(
        "experts",
        "Training with the best width of expert parallelism among those planned that fit in memory.",
        [
            ("model", training.text("model")[best]),
            (own_column("parameters", "G", "All parameters"), (parameter_count(joined) / giga)[best]),
            (
                own_column("active_parameters", "G", "Active parameters per token"),
                (parameter_count(joined, experts_per_token=True) / giga)[best],
            ),
            (
                own_column("expert_parallel", "-", "Best width of expert parallelism"),
                training.filled("expert_parallel")[best],
            ),
            *result_columns(
                trained,
                ("step_time", _RATE, "mfu", "time_expert_parallel", "memory_reserved", "cost_per_million_tokens"),
                best,
            ),
        ],
        [
            Chart("bars", "Training rate", "model", (_RATE,), y_title="token/s"),
            Chart("bars", "Parameters", "model", ("parameters", "active_parameters"), y_title="10^9"),
        ],
    )
    widths, decode = _widths(training, trained), _decode(inference, served)
    findings = [*_short(experts, decode), *_training_findings(experts), *_decode_findings(decode)]
    findings += _width_findings(widths)
    return Outcome(findings, [experts, widths, decode], catalog, [(training, trained), (inference, served)])


def _pivot(rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows in rising order, and values by row and column, NaN if missing."""
    keys, row = np.unique(rows, return_inverse=True)
    table = np.full((len(keys), int(columns.max(initial=-1)) + 1), np.nan)
    table[row, columns] = values
    return keys, table


def _widths(training: Table, trained: Table) -> StudySheet:
    """Rate and exposed all-to-all over the width of expert parallelism, for models with plans at several widths."""
    models, model = positions(training.text("model"))
    width, rate = training.filled("expert_parallel"), trained[_RATE]
    varied = [i for i in range(len(models)) if len(np.unique(width[model == i])) > 1]
    selected = np.isin(model, varied)
    share = trained["time_expert_parallel"] / trained["step_time"]
    keys, rates = _pivot(width[selected], model[selected], rate[selected])
    _, shares = _pivot(width[selected], model[selected], np.where(np.isfinite(rate), share, np.nan)[selected])
    rate_names, share_names = ([f"{word}_{models[i]}" for i in varied] for word in ("rate", "share"))
    return sheet_of(
        "width",
        "Training rate over the width of expert parallelism, and the share of the step that is exposed all-to-all.",
        [
            (own_column("expert_parallel", "-", "Accelerators over which the experts of a layer are split"), keys),
            *(
                (own_column(name, "token/s", "Tokens per second and accelerator"), rates[:, i])
                for name, i in zip(rate_names, varied, strict=True)
            ),
            *(
                (own_column(name, "-", "Exposed all-to-all over step time"), shares[:, i])
                for name, i in zip(share_names, varied, strict=True)
            ),
        ],
        [
            Chart("lines", "Training rate", "expert_parallel", rate_names, "expert parallel", "token/s"),
            Chart(
                "lines", "Share of exposed all-to-all", "expert_parallel", share_names, "expert parallel", "of the step"
            ),
        ],
    )


def _decode(inference: Table, served: Table) -> StudySheet:
    models, model = positions(inference.text("model"))
    keys, times = _pivot(inference["batch_size"], model, shown(served, "tpot"))
    return pivot_of(
        "decode",
        "Time per output token over the batch: mixtures read fewer weights at batch 1, until a batch uses all experts.",
        (own_column("batch", "-", "Requests"), keys),
        models,
        times,
        "ms",
        "Time per output token",
        [Chart("lines", "Time per output token", "batch", models, "batch", "ms", log_x=True, log_y=True)],
    )


def _is_mixture(name: str) -> bool:
    return "experts," in name and not name.startswith("dense")


def _short(experts: StudySheet, decode: StudySheet) -> Iterator[Finding]:
    """The fastest mixture to train beside the dense models, and its tokens at the smallest and largest batch."""
    names = [str(name) for name in experts.values("model")]
    size, rate = (dict(zip(names, experts.numbers(column), strict=True)) for column in ("parameters", _RATE))
    known = [name for name in names if _is_mixture(name) and f"dense, equal total to {name.partition(',')[0]}" in rate]
    served = {column.name for column in decode.columns}
    if _DENSE not in rate or _DENSE not in served or not set(known) & served:
        return
    name = max(set(known) & served, key=lambda name: size[name])
    twin = f"dense, equal total to {name.partition(',')[0]}"
    batch, ratio = decode.numbers("batch"), decode.numbers(name) / decode.numbers(_DENSE)
    places = sorted({0, int(np.nanargmax(ratio)), len(batch) - 1})
    slower = ", ".join(f"{ratio[at]:.1f} times as long at batch {batch[at]:.0f}" for at in places)
    larger, to_dense, to_twin = size[name] / size[_DENSE], rate[name] / rate[_DENSE], rate[name] / rate[twin]
    yield in_short(
        f"with {name} a model has {larger:.1f} times the parameters of the dense one of equal active size, trains at "
        f"{to_dense:.2f} times its rate and at {to_twin:.1f} times that of the dense one of equal total size",
        f"beside the dense one of equal active size its tokens take {slower}",
    )


def _training_findings(experts: StudySheet) -> Iterator[Finding]:
    names = [str(name) for name in experts.values("model")]
    size, rate = (dict(zip(names, experts.numbers(column), strict=True)) for column in ("parameters", _RATE))
    dense = next((name for name in names if name.startswith(_DENSE)), None)
    for name in filter(_is_mixture, names):
        if dense is None:
            break
        words = f"{name}: {size[name] / size[dense]:.1f} times the parameters of the dense model of equal active size "
        words += f"at {rate[name] / rate[dense]:.2f} times its rate"
        twin = f"dense, equal total to {name.partition(',')[0]}"
        if twin in rate:
            words += f", and {rate[name] / rate[twin]:.1f} times the rate of the dense one of equal total size"
        yield Finding("Training", f"{words}.", "good")


def _decode_findings(decode: StudySheet) -> Iterator[Finding]:
    names = [column.name for column in decode.columns]
    if _DENSE in names:
        batch, dense = decode.numbers("batch"), decode.numbers(_DENSE)
        ratios = {name: decode.numbers(name) / dense for name in names[1:] if _is_mixture(name)}
        parts = [
            f"{name} {ratio[0]:.2f} at batch {batch[0]:.0f} and {ratio[-1]:.2f} at {batch[-1]:.0f}"
            for name, ratio in ratios.items()
        ]
        words = "Time per token over that of the dense model of equal active size"
        yield Finding("Decode", f"{words}: {'; '.join(parts)}.")


def _width_findings(widths: StudySheet) -> Iterator[Finding]:
    for column in widths.columns:
        rate, width = widths.numbers(column.name), widths.numbers("expert_parallel")
        rate, width = rate[np.isfinite(rate)], width[np.isfinite(rate)]
        if column.name.startswith("rate_") and len(rate):
            best = max(rate)
            words = (
                f"{column.name.removeprefix('rate_')}: expert parallel {width[rate == best][-1]:.0f} trains fastest, "
            )
            words += f"{best:,.0f} tokens per second and accelerator"
            short = f"; the widest, {width[-1]:.0f}, reaches {rate[-1] / best:.2f} of it"
            words += f"{short if rate[-1] < best else ', the widest that was tried'}."
            yield Finding("Width", words)
