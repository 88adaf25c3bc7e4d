"""The binlog wire format: bytes to Arrow columns. No I/O and no threads. Start reading the code at ``decoder``."""
