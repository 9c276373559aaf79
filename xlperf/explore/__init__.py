"""Exploration: validation against published rows, and the fit of the calibration."""
