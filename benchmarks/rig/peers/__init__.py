"""The programs of ``benchmarks.peers``."""
