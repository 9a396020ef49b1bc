"""Cutting a graph between host and device, for all front doors: nodes are whatever a door calls them."""

from ge.hybrid.stages import Groups, assign_stages, follow, in_order

__all__ = ["Groups", "assign_stages", "follow", "in_order"]
