"""The Canal wire format: a client and entries to Arrow columns."""
