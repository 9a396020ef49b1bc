"""The ONNX project's own backend tests through parse, compile and run: `python -m ge.conformance onnx`."""
