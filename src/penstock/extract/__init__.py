"""The extract process: it follows a source's transaction log and knows nothing about targets."""
