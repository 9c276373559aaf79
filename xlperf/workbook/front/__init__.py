"""The sheets that a user opens first: questions, live answers, plan cards and comparisons."""
