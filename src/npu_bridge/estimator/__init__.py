"""Estimators, operators and helpers under the names that version-1 scripts import."""
