"""One source table to one target table."""
