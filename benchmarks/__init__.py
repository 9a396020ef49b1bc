"""Benchmarks: every figure the documentation states is printed by a script of this folder."""
