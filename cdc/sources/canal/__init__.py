"""The Canal source: a client of a Canal server, and its entries as Batches. Start reading the code at ``receiver``."""
