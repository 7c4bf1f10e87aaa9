"""The change log: segments, writer, reader, recovery."""
