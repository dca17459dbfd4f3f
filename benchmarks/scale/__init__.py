"""The streamed build at scale: time and memory against rows, devices and processes."""
