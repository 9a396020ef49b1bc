"""Recurrence: loop fission and fusion of recurrent layers."""
