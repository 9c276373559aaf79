"""Calibration: published measurements, the fit of the constants, cross-validation, error bands and validation."""
