"""Rows to frames: the session, types, DataFrames and writers."""
