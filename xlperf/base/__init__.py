"""Foundations: errors, units, arrays, files and what the package ships. They know nothing of models or machines."""
