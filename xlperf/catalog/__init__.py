"""Catalog of accelerators, models, networks and prices, from workbooks and CSV files; this room alone reads sheets."""
