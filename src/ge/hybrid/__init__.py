"""Divides a graph between host and device and specialises it, for all front doors; nodes are whatever a door has."""

from ge.hybrid.specialise import Patience, Specialiser
from ge.hybrid.stages import Groups, assign_levels, assign_stages, follow, in_order

__all__ = ["Groups", "Patience", "Specialiser", "assign_levels", "assign_stages", "follow", "in_order"]
