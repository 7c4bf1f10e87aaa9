"""Source: LogMiner's rows as runs of the change log."""
