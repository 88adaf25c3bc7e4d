"""Values that all packages share: batches, schemas, positions, GTID sets, chunks. No input or output."""
