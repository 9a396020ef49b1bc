"""Parses TensorFlow graphs and files into GE graphs."""
