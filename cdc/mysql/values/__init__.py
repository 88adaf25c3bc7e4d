"""Bytes of MySQL values to Arrow arrays."""
