"""Workload: the operators of a transformer with their FLOP, bytes and parameters."""
