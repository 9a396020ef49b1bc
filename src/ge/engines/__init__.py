"""Engines: what can run a node. Asked in order of preference; the first that accepts gets it, with a reason."""

from ge.engines.placement import ENGINES, EngineRule, place, placement_of

__all__ = ["ENGINES", "EngineRule", "place", "placement_of"]
