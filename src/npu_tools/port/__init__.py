"""`tf-adapter port`: ports GPU and CPU scripts to the NPU, with as few changes as necessary."""
