"""Rows of data and passes over them: in memory, streamed, on several devices and processes."""
