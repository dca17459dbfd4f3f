"""Simulation-based calibration of the whole chain: build, NUTS on the coreset, correction."""
