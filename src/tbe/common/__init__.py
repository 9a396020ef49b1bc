"""Helpers of operator files under their newer names: checks, shapes, registration, platform."""
