"""Clean-up: verification, folding, dead code, identities, algebra."""
