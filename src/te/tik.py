"""TIK is refused by name."""

from tbe.tik import __getattr__  # noqa: F401
