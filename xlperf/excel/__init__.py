"""Spreadsheet edges: the function registry, hosts generated from it, the worker, workbooks and reports."""
