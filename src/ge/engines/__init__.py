"""Engines run nodes. Placement queries them in order of preference; the first that accepts a node runs it."""

from ge.engines.placement import ENGINES, EngineRule, place, placement_of

__all__ = ["ENGINES", "EngineRule", "place", "placement_of"]
