"""Merge of several change logs into one: their order, their rows, and the position in each."""
