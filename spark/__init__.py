"""Spark: the session, types, DataFrames and writers."""
