"""Memory: what is computed again rather than kept."""
