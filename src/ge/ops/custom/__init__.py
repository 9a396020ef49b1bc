"""Operators that users wrote: found on the search path, loaded from packages, run in a process of their own."""
