"""Wires the packages: configuration, supervisor, handover, progress, lag, doctor, verify, demo."""
