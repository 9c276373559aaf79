"""Cost: from prices and power to the cost of a token."""
