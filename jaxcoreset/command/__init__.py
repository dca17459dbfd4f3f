"""The command ``jaxcoreset``: a demonstration, and coresets of files of rows."""
