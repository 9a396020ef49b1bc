"""Layout: storage order, transposes, slices and batches."""
