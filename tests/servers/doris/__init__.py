"""A stand-in Doris for tests: FE and BE over HTTP, the SQL port, tables in DuckDB, faults on order.

It is strict where the real one is strict, and says no more than the real one says. ``DorisStandIn`` starts it in this
process; ``python -m tests.servers.doris`` in one of its own.
"""
