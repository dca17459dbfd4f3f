"""What the package does where things go wrong: files, processes, numbers."""
