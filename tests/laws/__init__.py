"""Laws that any plan keeps, over seeded random legal plans of every mode.

=================  ==================================================================================================
module             what holds
=================  ==================================================================================================
test_rows          any order, any company, one row or thousands: the same bits
test_floors        nothing below zero; no time under its bytes over the bandwidth or its FLOP over the peak
test_hardware      better hardware is never slower, dearer or smaller
test_loads         more load keeps throughput and waits longer; prefill is linear; prefix hits help
test_parts         parts add up: time, memory, cost, energy, operators; Little's law
test_scaling       another clock, more layers, more replicas, other names, units, prices, stated defaults
test_forms         cells, cards, CSV, Parquet, workbooks and the command give the same bits
=================  ==================================================================================================

``random_plans`` draws the plans. A law that fails names the law, the number of plans that break it, the cells of the
first one and its values. A longer run: ``XLPERF_LAWS=2000 XLPERF_LAWS_SEED=1 pytest tests/laws``.

Laws that are broken on purpose, and the physics that breaks them:

==========================================  =========================================================================
not a law                                   because
==========================================  =========================================================================
more memory: TPOT is not longer             requests that waited now run: their step is longer, latency shorter
more bandwidth under load: TTFT is not      with a fixed number in flight, faster decoding brings more requests to the
longer (TPOT likewise)                      prefill at a time; latency and throughput are what improves
under load: input and output cost fall      time saved in one phase makes the other's share larger; together they fall
each by itself
twice the requests: TPOT is not shorter     with few requests in flight more of them are in prefill; latency is longer
twice the layers: twice the time            embedding, output projection and fixed costs stay: time is a line in layers
twice the layers: the exposed reduction     more backward passes hide more of it
of gradients is a line
local attention, leading dense layers:      patterns such as 5 sliding : 1 full do not divide every number of layers
a line in layers
twice the replicas on a torus: same time    the slice of the torus that the plan gets has other lengths and other rings
a default stated = blank: recompute         an option of what a plan does not have at all (copies of quantised weights,
modules, quantized copies, adapter modules  modules to recompute, adapters) is refused, whatever its value
more of a plan that does not fit            it has numbers as if nothing limited its batch; then it fits and is limited
twice the batch: prefill is at most twice   wave and tile quantisation: tokens per expert may fill tiles of 128 badly
more prefix hits with pipeline stages       several chunks follow each other through the stages, one longer one does not
more in flight: TTFT is not shorter, where  if all requests of a run come at once, none waits for a pass that has begun
a run ends
less load: TTFT is not longer where         a prompt waits for prompts of the other replicas, longer where fewer come
prompts are gathered
more multiprocessors are never slower       wave quantisation: tiles that fill 108 units evenly may not fill 132
prefill is linear in one prompt's length    attention is quadratic, chunks read earlier keys again
costs in another clock: derived devices     their price rows are defaults stated per year
==========================================  =========================================================================
"""
