"""Parses TensorFlow Lite's flatbuffers via the corresponding TensorFlow operators."""
