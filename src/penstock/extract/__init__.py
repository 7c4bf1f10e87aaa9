"""Sources: they follow a database's transaction log and know nothing of targets."""
