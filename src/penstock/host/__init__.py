"""Files, clock, connections, retry and faults: everything outside this program that can fail."""
