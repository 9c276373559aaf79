"""Worksheet functions: their registry, the worker that computes them, and the hosts generated from the registry."""
