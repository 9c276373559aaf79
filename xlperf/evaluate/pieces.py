"""How many plans go through the equations together."""

PIECE = 1024
"""Plans of one architecture: the arrays of so many stay in the processor's cache."""
