"""Partitions graphs between host and device and specialises them; independent of the front door's node type."""

from ge.hybrid.specialise import Patience, Specialiser
from ge.hybrid.stages import Groups, assign_levels, assign_stages, follow, in_order

__all__ = ["Groups", "Patience", "Specialiser", "assign_levels", "assign_stages", "follow", "in_order"]
