"""The Graph Engine: parse, verify, fuse, place, plan and run models on the NPU."""
