"""Collectives on networks that are listed link by link: built-in topologies, cuts, the mesh of DGX-1, shared links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from single_numbers import printed

from xlperf.base.errors import InputError
from xlperf.catalog.catalog import Catalog, load_catalog
from xlperf.catalog.parse import table_from_rows
from xlperf.engine import evaluate
from xlperf.engine.operations import evaluate_operations
from xlperf.equations.network.link_lists import Links, exchange_rate, gather_rate, max_min_rates, route_loads

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
HEADER = "network,tier,size,topology,dimensions,link bandwidth (GB/s),latency (us)\n"
NETWORKS = f"""{HEADER}ring of 8,1,8,ring,,100,2
ring of 5,1,5,ring,,100,2
torus of 16,1,16,torus,4x4,100,2
cube of 27,1,27,torus,3x3x3,90,2
torus of 32,1,32,torus,8x4,100,2
torus of 15,1,15,torus,5x3,100,2
torus of 24,1,24,torus,4x3x2,90,2
switch of 8,1,8,switch,,100,2
"""


def timed(catalog: Catalog | None = None, **given: Any) -> dict[str, Any]:
    """Result of one operation; names of columns with underscores."""
    row = {"accelerator": "V100-SXM2-32GB", "size": 256.0, "stack": "training", **given}
    names = [name.replace("_", " ") for name in row]
    table = evaluate_operations(table_from_rows("operations", names, [[*row.values()]]), catalog or load_catalog())
    return {name: values[0] for name, values in table.columns.items()}


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    path: Path = tmp_path_factory.mktemp("networks") / "networks.csv"
    path.write_text(NETWORKS, encoding="utf-8")
    return load_catalog(path)


def along(lengths: tuple[int, ...], bandwidth: float, latency: float) -> str:
    """Links of a torus, a ring on one axis; ``bandwidth``: of one link each way [GB/s]."""
    links = set()
    for place in np.ndindex(*lengths):
        for axis, length in enumerate(lengths):
            other = list(place)
            other[axis] = (place[axis] + 1) % length
            links.add((place, tuple(other)))
    name = {place: f"g{number}" for number, place in enumerate(np.ndindex(*lengths))}
    pairs = sorted(links, key=lambda pair: (name[pair[0]], name[pair[1]]))
    return "; ".join(f"{name[a]} {name[b]} {bandwidth} {latency}" for a, b in pairs)


def star(ranks: int, bandwidth: float, latency: float) -> str:
    return "; ".join(f"g{number} s0 {bandwidth} {latency}" for number in range(ranks))


def leaves(bandwidth: float, latency: float, of_spines: float) -> str:
    """A fat-tree: four leaf switches with two ranks each under two spines, without oversubscription."""
    down = [f"g{number} s{number // 2} {bandwidth} {latency}" for number in range(8)]
    up = [f"s{leaf} spine{spine} {bandwidth} {of_spines}" for leaf in range(4) for spine in range(2)]
    return "; ".join(down + up)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("size", [0.01, 1.0, 1000.0])
@pytest.mark.parametrize(
    ("network", "group", "links"),
    [
        ("ring of 8", 8, along((8,), 50.0, 2.0)),
        ("ring of 5", 5, along((5,), 50.0, 2.0)),
        ("torus of 16", 16, along((4, 4), 25.0, 2.0)),
        ("cube of 27", 27, along((3, 3, 3), 15.0, 2.0)),
        ("torus of 32", 32, along((4, 8), 25.0, 2.0)),
        ("torus of 15", 15, along((3, 5), 25.0, 2.0)),
        ("torus of 24", 24, along((2, 3, 4), 15.0, 2.0)),
        ("switch of 8", 8, star(8, 100.0, 1.0)),
        ("switch of 8", 8, leaves(100.0, 0.5, 0.5)),
    ],
)
def test_lists_of_built_in_topologies_take_as_long(
    operation: str, size: float, network: str, group: int, links: str, built_in: Catalog
) -> None:
    given = {"operation": operation, "size": size, "group": group, "catalog": built_in}
    listed, known = timed(links=links, **given), timed(network=network, **given)
    assert listed["time"] == pytest.approx(known["time"], rel=1e-9)


MESH = (
    "0 1 25; 0 2 25; 0 3 50; 0 4 50; 1 2 50; 1 3 25; 1 5 50; 2 3 50; 2 6 25; 3 7 25;"
    "4 5 25; 4 6 25; 4 7 50; 5 6 50; 5 7 25; 6 7 50"
)
"""NVLinks of a DGX-1 with V100: six of 25 GB/s for each accelerator, two to some neighbours."""


def test_the_mesh_of_dgx_1_reaches_all_links_of_an_accelerator() -> None:
    """Three rings each way over six links of 25 GB/s: 150 GB/s, as on the switch of a DGX-2. Pairs that are not
    neighbours share links, so that an all-to-all has less.
    """
    reached = timed(operation="all-reduce", group=8, links=MESH.replace(";", " 1.5;"), size=1e4)
    switch = timed(operation="all-reduce", group=8, network="DGX-2-V100", size=1e4)
    assert reached["bus_bandwidth"] == pytest.approx(switch["bus_bandwidth"], rel=1e-3)
    exchanged = [timed(operation="all-to-all", group=8, size=1e4, **where)["time"]
                 for where in ({"links": MESH}, {"network": "DGX-2-V100"})]  # fmt: skip
    assert exchanged[0] > 1.2 * exchanged[1]


def test_nccl_rates_of_meshes_of_v100() -> None:
    """NCCL has six rings of 22 GB/s on four V100 with two links for each pair (NVIDIA/nccl issue 713), and counts 20 to
    22 GB/s for one of the six links of a DGX-1 (its topo.h): 132 and 120 to 132 GB/s, within 15 %.
    """
    pairs = "; ".join(f"{a} {b} 50 1.5" for a in range(4) for b in range(a))
    given = {"operation": "all-reduce", "size": 1e3}
    four, eight = timed(**given, group=4, links=pairs), timed(**given, group=8, network="DGX-1-V100")
    for row_id, result in (("N01", four), ("N02", eight), ("N03", eight)):
        assert result["bus_bandwidth"] == pytest.approx(1e9 * printed(row_id), rel=0.15)


@pytest.mark.parametrize(
    ("tier", "links", "sizes", "machines"),
    [
        ("8,ring,", along((8,), 50.0, 2.0), [1, 2, 4, 8], 2),
        ("16,torus,4x4", along((4, 4), 25.0, 2.0), [4, 16], 1),
        ("8,torus,4x2", along((2, 4), 25.0, 2.0), [1, 8], 2),
        ("8,switch,", star(8, 100.0, 1.0), [1, 2, 4, 8], 2),
        ("8,fat-tree,", leaves(100.0, 1.0, 0.0), [1, 2, 4, 8], 2),
    ],
)
def test_plans_on_lists_take_as_long_as_on_built_in_tiers(
    tier: str, links: str, sizes: list[int], machines: int, tmp_path: Path
) -> None:
    """One machine and two that a fat-tree joins, for all mappings that fill whole axes."""
    size = sizes[-1]
    outer = f"2,{16 * size},fat-tree,,12.5,5"
    rows = [f"known,1,{tier},100,2", f"known,{outer}", f'listed,1,{size},links,"{links}",100,2', f"listed,{outer}"]
    path = tmp_path / "networks.csv"
    path.write_text(HEADER + "\n".join(rows), encoding="utf-8")
    catalog = load_catalog(path)
    fixed = {"model": "Qwen3-30B-A3B", "accelerator": "H100"}
    mapped = [
        {**fixed, "num accelerators": total, "tensor parallel": tensor, "pipeline parallel": stages}
        for total in {size, machines * size} for tensor in sizes for stages in sizes[:-1] if tensor * stages <= size
    ]  # fmt: skip
    for kind, result, more in (
        ("training", "step_time", lambda row: {"expert parallel": size if row["tensor parallel"] == 1 else 1}),
        ("inference", "tpot", lambda _: {"prompt length": 1000, "output length": 100, "batch size": 32}),
    ):
        plans = [[{**row, **more(row), "network": name} for row in mapped] for name in ("known", "listed")]
        known, listed = (
            evaluate(table_from_rows(kind, [*given[0]], [[*row.values()] for row in given]), catalog)[result]
            for given in plans
        )
        assert np.isfinite(known).sum() > len(mapped) // 3
        np.testing.assert_allclose(listed, known, rtol=1e-9)


def mesh(rng: np.random.Generator) -> Links:
    """A connected random network of six ranks, with a bandwidth of its own for each link, alike both ways."""
    pairs = [(a, int(rng.integers(a))) for a in range(1, 6)]
    pairs += [(a, b) for a in range(6) for b in range(a) if rng.random() < 0.3]
    first, second = np.array(pairs).T
    bandwidth = rng.uniform(1.0, 9.0, len(pairs))
    ends = np.concatenate([first, second]), np.concatenate([second, first])
    return Links(6, *ends, np.concatenate([bandwidth, bandwidth]), np.zeros(2 * len(pairs)))


@pytest.mark.parametrize("seed", range(8))
def test_gathers_fill_the_tightest_cut_and_exchanges_fit_in_it(seed: int) -> None:
    """Brute force over all cuts of six ranks: data of k ranks inside cross the cut; k (6 - k) pairs do."""
    links = mesh(np.random.default_rng(seed))
    gather, exchange = np.inf, np.inf
    for code in range(1, 63):
        inside = np.array([bool(code >> node & 1) for node in range(6)])
        crossing = links.bandwidth[inside[links.source] & ~inside[links.target]].sum()
        gather = min(gather, crossing / inside.sum())
        exchange = min(exchange, crossing / (inside.sum() * (~inside).sum()))
    assert gather_rate(links, np.arange(6)) == pytest.approx(gather, rel=1e-9)
    assert exchange_rate(links, np.arange(6)) <= exchange * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_shares_are_max_min_fair(seed: int) -> None:
    """Nothing is over full, and each job has a full link on which no job is faster."""
    rng = np.random.default_rng(seed)
    bandwidth = rng.uniform(1.0, 5.0, 7)
    loads = rng.uniform(0.1, 1.0, (4, 7)) * (rng.random((4, 7)) < 0.5)
    loads[:, rng.integers(7)] = 1.0
    rates = max_min_rates(bandwidth, loads)
    used = rates @ loads
    assert (used <= bandwidth * (1.0 + 1e-9)).all()
    full = used >= bandwidth * (1.0 - 1e-9)
    for job in range(4):
        tight = np.flatnonzero(full & (loads[job] > 0.0))
        assert any(rates[job] >= rates[loads[:, link] > 0.0].max() * (1.0 - 1e-9) for link in tight)


def test_routes_share_equal_paths() -> None:
    """From one corner of a square to the other: half each way."""
    first, second = np.array([[0, 1], [1, 2], [2, 3], [3, 0]]).T
    links = Links(4, np.concatenate([first, second]), np.concatenate([second, first]), np.ones(8), np.zeros(8))
    loads = route_loads(links, np.array([[0, 2]]), np.array([1.0]))
    assert loads.tolist() == [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5]


def test_a_job_beside_another_waits_where_they_share_links() -> None:
    """Two leaf switches with one link between them: a job inside a leaf is alone, two across it have half each."""
    two = "a0 s0 100; a1 s0 100; b0 s0 100; c0 s1 100; c1 s1 100; b1 s1 100; s0 s1 100"
    given = {"operation": "all-gather", "group": 2, "size": 1e4, "links": two}
    across = two.replace("a1 s0", "a1 s1")
    alone, apart = timed(**given), timed(**given, beside="c0 c1")
    shared = timed(**(given | {"links": across}), beside="b0 b1")
    assert apart["time"] == alone["time"]
    assert shared["time"] == pytest.approx(2.0 * timed(**(given | {"links": across}))["time"], rel=0.01)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"links": "a b"}, 'links: "a b" is no link: write two nodes, GB/s of each direction and us'),
        ({"links": "a a 25"}, 'links: "a a 25" is no link'),
        ({"links": "a b -3"}, "a bandwidth above 0"),
        ({"links": "a b nan"}, "a bandwidth above 0"),
        ({"links": ";"}, "links: has no links"),
        ({"links": "a b 25"}, "links: lists 2 ranks, fewer than the 4 of the group"),
        ({"links": "a b 25; c d 25"}, "links: does not connect the ranks"),
        ({"links": star(4, 9.0, 1.0), "beside": "g0 g9"}, 'links: beside names "g9", which is no node'),
        ({"beside": "g0 g1"}, "beside needs links"),
        ({"operation": "point-to-point", "links": "a b 25"}, "links says nothing of point-to-point"),
    ],
)
def test_wrong_lists_say_what_is_wrong(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        timed(**({"operation": "all-reduce", "group": 4} | given))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("1,4,links,a b 9; c d 9", "is a list of links that does not connect all ranks"),
        ("1,4,links,a b 9; b c 9", "lists the links of 3 ranks, but joins 4"),
        ("1,4,links,a b", 'is a list of links in dimensions: "a b" is no link'),
        ("1,4,links,", "is a list of links in dimensions: has no links"),
        ("1,2,switch,,9,2\nwrong,2,4,links,a b 9", "is a list of links, which only the innermost tier can be"),
    ],
)
def test_plans_on_wrong_lists_say_what_is_wrong(rows: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "networks.csv"
    path.write_text(f"{HEADER}wrong,{rows},9,2\n", encoding="utf-8")
    plan = {"model": "Llama3-8B", "accelerator": "H100", "network": "wrong", "num accelerators": 4}
    results = evaluate(table_from_rows("training", [*plan], [[*plan.values()]]), load_catalog(path))
    assert np.isnan(results["step_time"][0]) and words in results["reason"][0]
