"""ONNX models into GE graphs."""
