"""Benchmarks: five programs on one rig. Each measured figure is checked, printed and written as JSON."""
