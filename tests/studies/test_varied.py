"""Studies of one varied input: what rises with adapters, images, experts on the host, claims and late starts."""

from __future__ import annotations

import numpy as np
import pytest
from study_samples import outcome, sheet


@pytest.mark.parametrize(
    ("name", "wanted", "rising", "first"),
    [
        ("adapters", "adapters", ("tpot", "memory_adapters"), 0.0),
        ("desk-machine", "host experts share", ("tpot", "memory_host"), None),
        ("images", "images", ("ttft", "image_tokens_per_request", "encode_time"), 0.0),
        ("quotes", "claimed value", ("claim_ratio", "limit_share", "percentile"), None),
        ("day-of-a-service", "start time", ("day_cost", "serving_hours"), None),
    ],
)
def test_results_rise_with_the_varied_input(
    name: str, wanted: str, rising: tuple[str, ...], first: float | None
) -> None:
    made = sheet(name, wanted)
    models, varied = np.array(made.values("model")), made.numbers(made.columns[2].name)
    for model in dict.fromkeys(models.tolist()):
        rows = models == model
        assert (np.diff(varied[rows]) > 0.0).all()
        for column in rising:
            values = made.numbers(column)[rows]
            assert (np.diff(values) >= 0.0).all() and values[-1] > values[0], (model, column)
        if first is not None:
            assert made.numbers(rising[1])[rows][0] == first
    assert len(outcome(name).findings) == 1 + len(set(models.tolist()))


def test_a_claim_over_its_prediction_is_proportional() -> None:
    made = sheet("quotes", "claimed value")
    ratio = made.numbers("claim_ratio") / made.numbers("claimed_value")
    assert ratio == pytest.approx(ratio[0]) and made.values("verdict")[-1] == "impossible"
