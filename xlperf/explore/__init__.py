"""Exploration: search, solve, sweep and frontier over plans, and the shares of derived devices."""
