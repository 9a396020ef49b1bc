"""Operators of ONNX Runtime (domain com.microsoft), as its optimiser, quantiser and exporters write them."""
