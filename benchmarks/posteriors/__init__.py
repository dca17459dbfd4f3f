"""Posteriors that are not Gaussian: the library's default and other methods against the truth."""
