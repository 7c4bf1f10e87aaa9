"""Bytes to values and back, without I/O. Each kernel is beside its twin in Python."""
