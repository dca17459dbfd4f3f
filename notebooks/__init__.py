"""Notebooks that show what jaxcoreset does, and the command that executes them."""
