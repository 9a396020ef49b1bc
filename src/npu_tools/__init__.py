"""The command line `tf-adapter`. Imports no framework, so that help and completion are instant."""
