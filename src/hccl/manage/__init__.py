"""Ranks and groups, under the names that scripts import."""
