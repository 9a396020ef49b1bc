"""Recurrence: hoisting, fusion of recurrent layers."""
