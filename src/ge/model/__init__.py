"""The compiled model: plan, container file and execution."""
