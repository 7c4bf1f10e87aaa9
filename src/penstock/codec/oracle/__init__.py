"""Oracle as texts and bytes: rows of LogMiner, types and values. No input or output here."""
