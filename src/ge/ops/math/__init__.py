"""Arithmetic: elementwise and binary operators, reductions, linear algebra, signals, random numbers."""
