"""Several change logs as the source of one: their order, their rows, where each of them is."""
