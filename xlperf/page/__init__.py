"""HTML: tables of results for notebooks, and an answer as a page to send."""
