"""Runs the ONNX project's backend tests through parse, compile and run: `python -m ge.conformance onnx`."""
