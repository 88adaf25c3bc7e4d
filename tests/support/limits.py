"""The time limit of what only finds hangs."""

HANG_S = 600.0  # includes starts of Python and the JVM, and recovery, on a busy machine
