"""Own accelerators against tokens of an API: its price of the same requests, and the load at which both cost the same.

A provider asks for tokens, an owner pays for whole servers day and night. The load is taken to be the same all day.
"""

from __future__ import annotations

import numpy as np

from xlperf.base.units import DAY, MILLION
from xlperf.catalog.catalog import Catalog
from xlperf.catalog.table import Table
from xlperf.equations.cost.tokens import break_even_load
from xlperf.explore.search_results import Answer, dollars


def against_api(form: Table, catalog: Catalog, found: Answer) -> Answer:
    """The cheapest API that sells the model of a form, and the load from which on the fleet of an answer is cheaper.

    ``form``: one row of kind ``serve``. ``found``: its answer: price of an hour, copies, servers, tokens per second.
    Returns nothing where the sheet ``api_prices`` lacks the model.
    """
    table = catalog.tables["api_prices"]
    model = str(form.text("model")[0]).casefold()
    rows = np.flatnonzero([str(name).casefold() == model for name in table.text("model").tolist()])
    if not len(rows):
        return {}
    lengths = [float(form.number(name)[0]) for name in ("prompt_length", "output_length")]
    paid, sold = table.number("input_price")[rows], table.number("output_price")[rows]
    each = sold + paid * lengths[0] / lengths[1]
    best = int(np.argmin(each))
    price, provider = float(each[best]), str(table.text("provider")[rows[best]])
    per_user = found["tokens_per_second"] / found["users"]
    users = float(
        break_even_load(
            found["hour_price"], found["copy_size"], found["server_size"], found["concurrency"], per_user * price
        )
    )
    users = users if np.isfinite(users) else np.nan
    tokens = users * per_user * DAY
    answer: Answer = {
        "api_price": str(table.text("api_price")[rows[best]]),
        "api_provider": provider,
        "api_cost_per_million_output_tokens_all_in": price,
        "api_monthly_cost": price * found["tokens_per_second"] * float(form.filled("hours_per_month")[0]),
        "break_even_users": users,
        "break_even_tokens_per_day": tokens,
    }
    asked = " and ".join(f"{dollars(float(one[best]) * MILLION)} {way}" for one, way in ((paid, "in"), (sold, "out")))
    api = f"{provider}'s API of {table.text('model')[rows[best]]} at {asked} per million tokens"
    if found["hour_price"] != found["hour_price"]:
        answer["api_answer"] = f"{api} costs {dollars(price * MILLION)} per million output tokens with their prompts."
    elif users != users:
        own = found["hour_price"] * found["copy_size"] / (per_user * found["concurrency"])
        answer["api_answer"] = (
            f"At no load is this cheaper than {api}: {dollars(own * MILLION)} against {dollars(price * MILLION)} per "
            f"million output tokens with their prompts at best."
        )
    else:
        answer["api_answer"] = (
            f"From {users:,.0f} users in flight or {tokens / MILLION:,.0f} M output tokens a day on, this is cheaper "
            f"than {api}."
        )
    return answer
