"""Equations on arrays: hardware, networks, models, plans, training, serving and cost; no tables, no files."""
