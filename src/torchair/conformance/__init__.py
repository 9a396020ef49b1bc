"""PyTorch's own operator samples, run through the compiler and compared with eager mode."""
