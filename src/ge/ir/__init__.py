"""Types, tensor descriptions and graph helpers over onnx_ir."""
