"""Every experiment of the papers, with their methods and ours: ``python -m benchmarks.paper``."""
