"""Fusion: replaces many small operators by few large ones."""
