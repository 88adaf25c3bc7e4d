"""The binlog wire format: bytes to Arrow columns, no threads."""
