"""`tf-adapter port`: scripts for GPUs and plain scripts, changed where a change is needed to run on the NPU."""
