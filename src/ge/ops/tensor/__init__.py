"""Tensors: shapes, orders, pieces, positions, sorting, text."""
