"""Apache Ignite's bytes: segments of its write-ahead log, marshalled values, types' metadata."""
