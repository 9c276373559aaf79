"""Catalog: what exists, read from workbooks; the only room that reads files."""
