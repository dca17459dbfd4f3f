"""Hierarchical models with groups as data: sizes, time, truth, calibration."""
