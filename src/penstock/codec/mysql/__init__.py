"""Bytes and values of MySQL and MariaDB: binlog, protocol, texts. No I/O."""
