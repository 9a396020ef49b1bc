"""Classical machine learning (domain ai.onnx.ml): trees, linear models, kernels, preparation of features."""
