"""Hooks that observe a running script, one module per framework; they never change its results."""
