"""Precision: element types of products and of stored values."""
