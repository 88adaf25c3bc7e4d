"""Benchmarks: each prints what it measured and writes it to benchmarks/results/ as JSON."""
