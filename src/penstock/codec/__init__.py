"""Bytes to values and back, without I/O. Kernels stand beside their readable twins."""
