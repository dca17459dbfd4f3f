"""A Gaussian without rows, a proxy with few rows, and rows alone, on narrow and wide data."""
