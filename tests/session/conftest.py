"""Tests here seal model files with a key of their own, never with the user's."""

from tests.support.keys import own_key  # noqa: F401  a fixture
