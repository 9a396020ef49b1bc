"""Operator files and TIK programs beside NumPy: what runs and is right, by family."""
