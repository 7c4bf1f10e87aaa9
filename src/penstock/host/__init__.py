"""Files, clock, connections, retry, faults: the one door to what can fail."""
