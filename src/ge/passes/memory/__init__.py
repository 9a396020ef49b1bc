"""Memory: rematerialisation."""
