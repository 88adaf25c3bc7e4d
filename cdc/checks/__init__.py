"""Checks of a job file against its servers, before the job starts."""
