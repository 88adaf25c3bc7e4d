"""Formats of messages in Kafka."""
