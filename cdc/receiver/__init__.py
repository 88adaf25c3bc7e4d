"""Receivers: sources that hand out Batches and are acked."""
