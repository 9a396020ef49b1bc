"""TensorFlow Lite's flatbuffers, read as the TensorFlow operators that they were made from."""
