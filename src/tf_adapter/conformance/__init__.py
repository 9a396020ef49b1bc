"""TensorFlow's operators on the NPU against the CPU: `python -m tf_adapter.conformance`."""
