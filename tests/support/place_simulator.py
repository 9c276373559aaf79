"""Waits for the places of one copy, simulated request by request.

``python tests/support/place_simulator.py`` writes the table.

It shares no code with xlperf. Requests come at random times to c places, first come first served, and keep a place for
a time in proportion to their outputs, whose mean is 1.
"""

from __future__ import annotations

import csv
import heapq

import numpy as np
from places import DATA

TABLE = DATA / "place_waits.csv"
HEADER = ("places", "load", "output_variation", "share_waiting", "mean", "ninetieth", "ninety_ninth")
_ROOT_OF_THREE = 3.0**0.5


def equal_holds(places: int, load: float, number: int, seed: int) -> np.ndarray:
    """Waits with equal hold times of 1: each place takes every c-th request, so that Lindley's recursion is a walk."""
    random = np.random.default_rng(seed)
    came = np.cumsum(random.exponential(1.0 / (places * load), number // places * places)).reshape(-1, places)
    walk = np.concatenate([np.zeros((1, places)), np.cumsum(1.0 - np.diff(came, axis=0), axis=0)])
    waits = walk - np.minimum.accumulate(walk, axis=0)
    return np.asarray(waits[len(waits) // 20 :].ravel())


def drawn_holds(places: int, load: float, variation: float, number: int, seed: int) -> np.ndarray:
    """Waits with hold times spread evenly around 1, with a coefficient of variation of 1 exponential."""
    random = np.random.default_rng(seed)
    came = np.cumsum(random.exponential(1.0 / (places * load), number)).tolist()
    half = _ROOT_OF_THREE * variation
    lasts = random.exponential(1.0, number) if variation == 1.0 else random.uniform(1.0 - half, 1.0 + half, number)
    free, waits = [0.0] * places, np.zeros(number)
    for request, (now, hold) in enumerate(zip(came, lasts.tolist(), strict=True)):
        begun = max(now, free[0])
        waits[request] = begun - now
        heapq.heapreplace(free, begun + hold)
    return waits[number // 20 :]


def sixty_loads() -> list[tuple[int, float, float]]:
    """Places, load and variation of outputs: 60 random loads at 30 to 98 % of the capacity of 1 to 256 places."""
    random = np.random.default_rng(36)
    places = np.round(np.exp(random.uniform(0.0, np.log(256.0), 60))).astype(int)
    loads = np.round(random.uniform(0.3, 0.98, 60), 4)
    variations = random.choice([0.0, 0.0, 0.3, 0.57, 1.0], 60)
    return list(zip(places.tolist(), loads.tolist(), variations.tolist(), strict=True))


def summary(waits: np.ndarray) -> tuple[float, float, float, float]:
    """Share that waits, mean, 90th and 99th percentile."""
    return float(np.mean(waits > 0.0)), float(waits.mean()), *(float(q) for q in np.quantile(waits, [0.9, 0.99]))


def main() -> None:
    """Write the table: more requests where queues take long to forget where they began."""
    with TABLE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(HEADER)
        for row, (places, load, variation) in enumerate(sixty_loads()):
            number = int(min(max(6e4 / (1.0 - load) ** 2, 1e6), 1.6e7))
            if variation == 0.0:
                waits = equal_holds(places, load, 2 * number, row)
            else:
                waits = drawn_holds(places, load, variation, number, row)
            table.writerow([places, load, variation, *(f"{value:.6g}" for value in summary(waits))])


if __name__ == "__main__":
    main()
