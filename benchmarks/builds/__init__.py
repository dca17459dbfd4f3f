"""Whole builds, end to end: one benchmark a file, run with ``python -m benchmarks.builds.NAME``."""
