"""The binlog source: read a replication stream or binlog files as Batches. Start reading the code at ``receiver``."""
