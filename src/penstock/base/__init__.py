"""The base of a log: its tables as they were at a position, and with the log at any later one."""
