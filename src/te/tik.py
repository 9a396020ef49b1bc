"""TIK under its older name."""

from tbe.tik import *  # noqa: F403
from tbe.tik import __all__, __getattr__  # noqa: F401
