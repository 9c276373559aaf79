"""Equations on arrays: hardware, networks, models, plans, training, serving and cost. They know no tables and no files."""
