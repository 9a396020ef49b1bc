"""Parses ONNX models into GE graphs."""
