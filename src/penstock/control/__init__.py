"""Wires the packages together: configuration, supervisor, handover, progress, lag, doctor, "
"verify, demo."""
