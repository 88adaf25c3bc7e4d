"""Rows that walk through known states while the job is killed and readers watch the target."""
