"""Custom operators: found on the search path, loaded from packages, and run in a sandbox process."""
