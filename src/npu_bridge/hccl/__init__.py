"""Collectives in version-1 graphs."""
