"""`python -m tf_adapter.check`: another name of `tf-adapter check` (package `npu_tools.check`)."""
