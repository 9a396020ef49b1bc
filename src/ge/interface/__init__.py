"""Converts inputs and outputs that are not numeric tensors (strings, sequences, optionals, dictionaries).

String tensors enter the plan as 64-bit identifiers (`strings`), sequences and optionals as one port per element, and
the parts of a model that compute on text run on the host, before and after the plan (`host`).
"""

from ge.interface.record import Interface, Leaf, Tree
from ge.interface.strings import identify
from ge.interface.structure import ANY_FORM, structure

__all__ = ["ANY_FORM", "Interface", "Leaf", "Tree", "identify", "structure"]
