"""Bytes and values of PostgreSQL: pgoutput, COPY, protocol, SCRAM. No I/O."""
