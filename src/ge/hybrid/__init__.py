"""Partitions a graph between host and device, for all front doors; a node is whatever the door calls one."""

from ge.hybrid.stages import Groups, assign_levels, assign_stages, follow, in_order

__all__ = ["Groups", "assign_levels", "assign_stages", "follow", "in_order"]
