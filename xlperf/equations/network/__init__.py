"""Networks: tiers that a group spans, and the time of collective operations on them."""
