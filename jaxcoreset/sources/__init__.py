"""Stand-in until the sources are merged."""
