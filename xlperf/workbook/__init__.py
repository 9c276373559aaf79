"""Workbooks and reports: the shipped workbooks, reports and studies as .xlsx files, charts and style."""
