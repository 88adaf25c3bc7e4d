"""The Kafka source: messages of topics, decoded and delivered as Batches. Start reading the code at ``receiver``."""
