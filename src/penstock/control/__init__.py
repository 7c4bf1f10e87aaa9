"""Wires the rooms: configuration, supervisor, handover, progress, lag, doctor, verify, demo."""
