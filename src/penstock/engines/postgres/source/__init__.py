"""PostgreSQL as a source: replication client, stream, slot, catalogue, snapshot."""
