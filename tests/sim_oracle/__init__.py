"""A model of an Oracle database that writes LogMiner rows, and a fake driver in front of it."""
