"""Sinks: targets that prepare, commit and abort loads."""
