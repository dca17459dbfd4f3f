"""What measures: run a module with ``python -m benchmarks.NAME``."""
