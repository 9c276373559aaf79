"""Report workbooks: results, breakdowns, cost, studies and their charts."""
