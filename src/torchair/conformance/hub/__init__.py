"""`python -m torchair.conformance hub`: networks and recipes of other packages against eager mode."""

from torchair.conformance.hub.cases import Case, Found, run, summary
from torchair.conformance.hub.command import FAMILIES, hub

__all__ = ["FAMILIES", "Case", "Found", "hub", "run", "summary"]
