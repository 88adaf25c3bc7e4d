"""The rows that are already there: key ranges of tables, read in parallel and turned into Arrow."""
