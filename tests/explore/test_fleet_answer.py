"""The question of a fleet over years: one year is Serve's owned answer, the value of waiting, and bad input."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from xlperf.base.errors import InputError
from xlperf.base.units import MILLION, YEAR
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.catalog.table import Table
from xlperf.engine import evaluate
from xlperf.explore import fleet_plans, fleet_programme, fleets
from xlperf.explore.fleet_programme import minimised
from xlperf.explore.forms import answer_of, form_of
from xlperf.explore.objectives import PLAN, TABLES

MW = 1e6
ASKED = {"model": "Meta-Llama-3.1-8B", "request_rate": "200", "prompt_length": "1000", "output_length": "200",
         "ttft_target": "2000", "software": "vllm", "first_year": "2025"}  # fmt: skip
SERVED = {name: ASKED[name] for name in ASKED if name != "first_year"}
HEADER = ["generation", "accelerator", "available", "price year", "price (USD)", "price change", "rental price (USD/h)",
          "rental change", "resale share"]  # fmt: skip
ROWS = [
    ["H100 2025", "H100-SXM-80GB", 2022.8, 2025, None, 0.0, 2.2, -0.1, None],
    ["B200 2025", "B200-SXM-180GB", 2024.9, 2025, None, -0.1, 3.0, -0.1, 0.65],
    ["GB200 2025", "GB200-NVL72", 2026.5, 2025, None, -0.1, None, -0.1, 0.65],
]


def priced(catalog: Catalog, rows: list[list[Any]] = ROWS) -> Catalog:
    def place(row: int, column: str) -> str:
        return f"generations row {row + 1}, {column}"

    return catalog.with_tables([table_from_rows("generations", HEADER, rows, place)])


class Asked(NamedTuple):
    results: dict[str, Any]
    years: Table
    machines: Table


def asked(catalog: Catalog, rows: list[list[Any]] = ROWS, **more: str) -> Asked:
    words = {name: text for name, text in {**ASKED, **more}.items() if text}
    form = form_of("fleet", words, lambda _, column: f"--{column.replace('_', '-')}")
    results = dict(answer_of(form, priced(catalog, rows)))
    tables = results.pop(TABLES, {})
    assert (PLAN in results) == bool(tables)
    results.pop(PLAN, None)
    return Asked(
        results, tables.get("years", Table("fleet_years", {})), tables.get("machines", Table("fleet_machines", {}))
    )


QUOTE = {"support_share": 0.04, "rented_storage": 2e12, "storage_price": 2.3e-11, "setup_price": 1500.0,
         "downtime_share": 0.05, "utilization": 0.9}  # fmt: skip


@pytest.mark.parametrize(
    ("accelerator", "demand", "quote"),
    [
        ("H100-SXM-80GB", {"request_rate": "200"}, {}),
        ("H100-SXM-80GB", {"request_rate": "200"}, QUOTE),
        ("H100-SXM-80GB", {"request_rate": "", "users": "3000"}, {}),
        ("B200-SXM-180GB", {"request_rate": "700", "energy_price": "0.2", "power_usage_effectiveness": "1.4"}, {}),
    ],
)
def test_one_year_is_the_owned_answer_of_serve(
    accelerator: str, demand: dict[str, str], quote: dict[str, float], catalog: Catalog
) -> None:
    """One year at the annuity's book value costs what Serve says of an owner of full copies, in tokens and money."""
    servers = catalog.tables["servers"]
    lines = {name: np.full(len(servers), value) for name, value in quote.items()}
    catalog = catalog.with_tables([servers.with_columns(lines)])
    rows = [[*row[:5], 0.0, *row[6:8], None] for row in ROWS]
    own = {"accelerator": accelerator, "payment": "own"}
    for _ in range(2):
        words = {name: text for name, text in {**SERVED, **demand}.items() if text}
        served = answer_of(form_of("serve", words | own), catalog)
        filled = {name: float(text) for name, text in demand.items() if text and name in ("users", "request_rate")}
        demand = demand | {name: f"{0.9999 * value * (1.0 + served['head_room'])}" for name, value in filled.items()}
    words = {name: text for name, text in {**SERVED, **demand}.items() if text}
    served = answer_of(form_of("serve", words | own), catalog)
    result = asked(catalog, rows, years="1", payment="own", generations=accelerator, **demand)
    answer = result.results
    per_token = served["owned_fleet_cost_per_million_output_tokens"]
    assert answer["cost_per_million_output_tokens"] == pytest.approx(per_token, rel=1e-9)
    year = served["owned_hour_cost"] * served["accelerators"] * YEAR
    assert answer["yearly_cost"] == pytest.approx(year, rel=1e-9)
    assert answer["peak_power"] == pytest.approx(served["power"], rel=1e-9)
    assert result.years["owned"].tolist() == [served["accelerators"]]
    assert result.years["tokens"][0] == pytest.approx(served["tokens_per_second"] * YEAR, rel=1e-9)


def test_an_answer_says_its_weights_and_what_an_unused_accelerator_would_add(catalog: Catalog) -> None:
    """The smallest order of a rack that the fleet leaves out, and a date after the last year."""
    more = {"years": "4", "payment": "own"}
    answer = asked(catalog, **more, generations="H100-SXM-80GB; B200-SXM-180GB; GB200-NVL72").results
    used = set(answer["first_purchase"].split()[1::3])
    weights, words = answer["defaults_used"].split(". ")[:2]
    assert weights == "Weights in FP8" and words.startswith("Never taken: ")
    assert "GB200 (the least order, 72, would add $" in words and not any(name in words for name in used)
    assert asked(catalog, **more, precision="bf16").results["defaults_used"].startswith("Weights in BF16. ")
    late = asked(catalog, **more | {"years": "1"}, generations="H100-SXM-80GB; GB200-NVL72").results["defaults_used"]
    assert "Never taken: GB200 (available in 2026.5)" in late.split(". ")


def test_copies_have_a_size_that_their_accelerators_hold(catalog: Catalog) -> None:
    machines = asked(catalog, growth="0.6", years="4").machines
    held = machines["bought"] + machines["kept"] + machines["rented"]
    assert (machines["copies"] * machines["copy_size"] <= held + 1e-6).all() and (machines["copies"] >= 1.0).all()


def test_parts_add_up_and_all_demand_is_served(catalog: Catalog) -> None:
    result = asked(catalog, growth="0.6", years="4")
    answer, years, machines = result
    parts = [answer[f"present_{name}"] for name in ("purchases", "rent", "upkeep", "building", "energy", "unmet")]
    assert answer["present_cost"] == pytest.approx(sum(parts) - answer["present_resale"], rel=1e-9)
    assert answer["present_cost"] == pytest.approx(years["present_cost"].sum(), rel=1e-9)
    assert years["demand"].tolist() == pytest.approx([200.0 * 1.6**year for year in range(4)])
    np.testing.assert_allclose(years["tokens"], years["demand"] * 200.0 * YEAR, rtol=0.02)
    assert (years["unmet"] == 0.0).all() and answer["unmet_share"] == 0.0
    owned = [sum(machines["bought"][rows] + machines["kept"][rows]) for rows in _rows_of_years(machines, years)]
    assert owned == pytest.approx(years["owned"].tolist())
    assert machines["accelerator"].tolist().count("GB200-NVL72") == sum(
        machines["year"][machines["accelerator"] == "GB200-NVL72"] >= "2027"
    )  # released in the middle of 2026
    # Stating the answer gives the answer.
    stated = {
        "growth": "", "request_rate": "", "years": "4", "discount_rate": str(answer["discount_rate"]),
        "demand_by_year": " ".join(map(str, years["demand"])),
        "generations": "; ".join(dict.fromkeys(machines["accelerator"])),
    }  # fmt: skip
    again = asked(catalog, **stated)
    assert again.results["answer"] == answer["answer"]
    assert again.years["present_cost"].tolist() == pytest.approx(years["present_cost"].tolist(), rel=1e-9)


def _rows_of_years(machines: Any, years: Any) -> list[np.ndarray]:
    return [np.flatnonzero(machines["year"] == year) for year in years["year"]]


def test_cheap_machines_to_come_are_worth_waiting_for(catalog: Catalog) -> None:
    """Purchases that lose their value at once are put off; rents that rise are not worth waiting for."""
    more = {"generations": "H100; B200", "years": "2", "growth": "0.3"}
    cheap = [[*row[:5], -0.9, 2.0, 0.0, 0.3] for row in ROWS[:2]]
    wait = asked(catalog, cheap, **more).results
    assert wait["value_of_waiting"] > 0.0 and str(wait["waiting"]).startswith("Rent for a year and wait")
    dear = [[*row[:5], 0.0, 20.0, 0.5, 0.9] for row in ROWS[:2]]
    buy = asked(catalog, dear, **more).results
    assert buy["value_of_waiting"] < 0.0 and str(buy["waiting"]).startswith("Buy now")
    even = [[*ROWS[1][:5], -0.1, 2.7, 0.0, 0.6]]  # own what both years need, rent what one does
    both = asked(catalog, even, generations="B200", years="2", request_rate="", demand_by_year="1600 200").results
    assert str(both["waiting"]).startswith("Buying and renting in 2025 takes $")
    for answer in (wait, buy, both):
        assert answer["best_first_cost"] <= min(answer["buy_now_cost"], answer["wait_cost"]) * (1.0 + 1e-9)


def test_a_changed_cell_evaluates_only_what_depends_on_it(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mappings depend on neither growth nor prices; the pools of a fleet depend on growth alone."""
    rows = {"mappings": 0, "pools": 0}

    def counting(module: ModuleType, name: str) -> None:
        def counted(plans: Table, *given: Any, **named: Any) -> Table:
            rows[name] += len(plans)
            return evaluate(plans, *given, **named)

        monkeypatch.setattr(module, "evaluate", counted)

    def evaluated(prices: list[list[Any]] = ROWS, **more: str) -> tuple[int, int]:
        rows.update(mappings=0, pools=0)
        asked(catalog, prices, prompt_length="1111", generations="H100; B200", years="3", **more)
        return rows["mappings"], rows["pools"]

    counting(fleet_plans, "mappings")
    counting(fleets, "pools")
    first = evaluated(growth="0.5")
    grown = evaluated(growth="0.3")
    assert first[0] > 100 and grown[0] <= 0.1 * first[0] and 0 < grown[1] < first[1]
    dearer = [[*row[:6], 1.1 * row[6] if row[6] else None, *row[7:]] for row in ROWS]
    assert evaluated(dearer, growth="0.3") == (0, 0)


def test_a_policy_that_the_best_plan_obeys_is_not_solved_again(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without draws: one programme, and one for each policy that the best plan breaks and each unused accelerator."""
    solved = []

    def counted(*given: Any, **named: Any) -> Any:
        solved.append(1)
        return minimised(*given, **named)

    monkeypatch.setattr(fleet_programme, "minimised", counted)
    more = {"generations": "H100; B200", "years": "2", "growth": "0.3"}
    for rent, best, other in ((20.0, "buy_now_cost", "wait_cost"), (0.1, "wait_cost", "buy_now_cost")):
        solved.clear()
        rows = [[*row[:5], 0.0, rent, 0.0, 0.9] for row in ROWS[:2]]
        answer = asked(catalog, rows, **more).results
        assert len(solved) == 2 + answer["defaults_used"].count("(the least order, ")
        assert answer[best] == answer["best_first_cost"] < answer[other]
    rented = asked(catalog, rows, payment="rent", **more).results
    assert "waiting" not in rented  # there is nothing to decide
    assert rented["wait_cost"] == rented["best_first_cost"] and rented["buy_now_cost"] != rented["buy_now_cost"]


def test_draws_are_seeded_and_spread(catalog: Catalog) -> None:
    more = {"generations": "H100; B200", "years": "3", "growth": "0.3", "draws": "4"}
    spread = {"demand_spread": "0.3", "price_spread": "0.2"}
    first, same = (asked(catalog, **more, **spread).results for _ in range(2))
    assert first == same
    other = asked(catalog, **more, **spread, seed="2").results
    assert other["best_first_cost"] != first["best_first_cost"]
    assert first["present_cost_p10"] < first["present_cost_p90"]
    steady = asked(catalog, **more).results
    assert steady["present_cost_p10"] == pytest.approx(steady["present_cost_p90"], rel=1e-9)
    assert 0.0 <= first["waiting_wins"] <= 1.0


def test_a_limit_of_power_without_rent_is_refused_with_what_would_do(catalog: Catalog) -> None:
    more = {"generations": "H100; B200", "years": "3", "growth": "2", "payment": "own"}
    free = asked(catalog, **more).results["peak_power"]
    result = asked(catalog, **more, facility_power_limit=str(0.6 * free / MW)).results
    assert "requests/s in 2027 cannot be served" in result["reason"] and "MW would serve all" in result["reason"]
    assert "payment both" in result["reason"] and "unmet price" in result["reason"]
    needed = float(result["reason"].split(" MW would")[0].split()[-1])
    assert "present_cost" in asked(catalog, **more, facility_power_limit=str(needed * 1.001)).results
    priced_unmet = asked(catalog, **more, facility_power_limit=str(0.6 * free / MW), unmet_price="5")
    assert priced_unmet.results["unmet_share"] > 0.0 and "Not served" in priced_unmet.results["answer"]
    lost = priced_unmet.years["unmet"].sum() * 200.0 * YEAR * 5.0 / MILLION
    assert priced_unmet.years["unmet_cost"].sum() == pytest.approx(lost, rel=1e-9)


def test_a_cheap_loss_of_all_demand_buys_nothing(catalog: Catalog) -> None:
    words = {name: text for name, text in ASKED.items() if name != "request_rate"}
    form = form_of("fleet", words | {"users": "20000", "years": "2", "generations": "H100", "unmet_price": "1e-6"})
    answer = answer_of(form, priced(catalog))
    assert PLAN not in answer and len(answer[TABLES]["machines"]) == 0
    assert answer["unmet_share"] == 1.0 and answer["present_cost"] == pytest.approx(answer["present_unmet"])
    assert str(answer["answer"]).startswith("Buy and rent nothing. 2025 to 2026: $")
    assert "20,000 of 20,000 users in 2025" in str(answer["answer"])


def test_what_is_owned_is_used(catalog: Catalog) -> None:
    more = {"generations": "B200", "years": "2", "owned_accelerator": "H100", "owned_since": "2023"}
    without = asked(catalog, generations="B200; H100", years="2").results["present_cost"]
    has = asked(catalog, **more, owned_number="64").results
    assert has["present_cost"] < without
    many = asked(catalog, **more, owned_number="640")
    kept = many.machines.number("kept")[
        (many.machines["accelerator"] == "H100-SXM-80GB") & (many.machines["year"] == "2025")
    ]
    words = [f"keep {kept[0]:,.0f} H100", f"2025 sell {640.0 - kept[0]:,.0f} H100"]
    assert len(kept) and all(one in many.results["answer"] for one in words)
    assert not many.machines.number("bought").any()  # nothing is sold and bought again at the same price


@pytest.mark.parametrize(
    ("more", "rows", "words"),
    [
        ({"request_rate": "auto", "users": "auto"}, ROWS, r"--users: users or request rate of the first year"),
        ({"growth": "900", "years": "4"}, ROWS, r"--growth: demand must stay below 1e\+07 requests/s.* in 2027"),
        ({"demand_by_year": "1 2 x", "years": "3"}, ROWS, r'--demand-by-year: must be numbers above 0 .*"1 2 x"'),
        ({"demand_by_year": "1 2", "years": "3"}, ROWS, r"--demand-by-year: has 2 numbers for 3 years; give one"),
        ({"generations": "H100; B210"}, ROWS, r'--generations: unknown accelerator "B210"'),
        ({"generations": "A100-SXM4-80GB"}, ROWS, r"--generations: A100-SXM4-80GB has no row in the sheet generations"),
        ({"owned_accelerator": "H100"}, ROWS, r"--owned-accelerator: needs owned number beside it"),
        ({"owned_accelerator": "H100", "owned_number": "8", "owned_since": "2026"}, ROWS, r"--owned-since: .*2025"),
        ({"years": "2"}, [[*ROWS[0][:5], None, *ROWS[0][6:]]],
         r"row 1, price_change: price of H100-SXM-80GB is missing for 2026: the last .* enter price change"),
        ({"years": "2"}, [[*ROWS[0][:7], None, None]],
         r"row 1, rental_change: rental price of H100-SXM-80GB is missing for 2026"),
        ({"first_year": "2024"}, [[*ROWS[0][:4], 20000.0, 0.0, *ROWS[0][6:]]],
         r"row 1, price_year: price of H100-SXM-80GB is missing for 2024: its first one is of 2025; add a row of 2024"),
    ],
)  # fmt: skip
def test_bad_input_names_the_cell(more: dict[str, str], rows: list[list[Any]], words: str, catalog: Catalog) -> None:
    with pytest.raises(InputError, match=words):
        asked(catalog, rows, **more)


def test_prices_of_later_rows_take_over(catalog: Catalog) -> None:
    """A row of a later year replaces the trend of the row before it."""
    rows = [
        [*ROWS[0][:4], 20000.0, -0.1, 2.2, -0.1, None],
        ["H100 2026", "H100-SXM-80GB", None, 2026, 50000.0, 0.0, 9.0, 0.0, None],
    ]
    result = asked(catalog, rows, years="2", payment="own", demand_by_year="200 800")
    first, second = result.years["purchases"]
    bought = [float(number) for number in result.machines["bought"]]
    assert second / bought[1] - first / bought[0] > 30000.0
