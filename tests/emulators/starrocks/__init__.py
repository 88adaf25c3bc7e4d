"""An emulator of StarRocks for tests: FE and BE over HTTP, the SQL port, tables in DuckDB, faults that tests order.

It has the transaction interface only. It is as strict as the real one, and forgets what the real one forgets: FE and
BE keep what is not prepared in memory, each its own part. ``StarrocksEmulator`` starts it in this
process; ``python -m tests.emulators.starrocks`` in one of its own.
"""
