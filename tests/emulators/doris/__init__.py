"""An emulator of Doris for tests: FE and BE over HTTP, the SQL port, tables in DuckDB, faults that tests order.

It is as strict as the real one, and returns no more than the real one. ``DorisEmulator`` starts it in this
process; ``python -m tests.emulators.doris`` in one of its own.
"""
