"""Functions for notebooks: the commands with DataFrames in and out, results that show themselves, and their plots."""
