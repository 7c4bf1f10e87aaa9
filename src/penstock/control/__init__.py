"""Wiring of the packages: configuration, supervisor, handover, progress, lag, doctor, verify."""
