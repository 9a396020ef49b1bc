"""Fusion: few large operators instead of many small ones."""
