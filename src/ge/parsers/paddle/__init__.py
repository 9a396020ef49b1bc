"""Parses PaddlePaddle's programs into GE graphs."""
