"""A stand-in StarRocks for tests: FE and BE over HTTP, the SQL port, tables in DuckDB, faults on order.

It has the transaction interface and no more. It is strict where the real one is strict, and forgets what the real one
forgets: FE and BE keep what is not prepared in memory, each its own part of it. ``StarrocksStandIn`` starts it in this
process; ``python -m tests.servers.starrocks`` in one of its own.
"""
