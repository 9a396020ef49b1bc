"""The command line `tf-adapter`: this package imports no framework, so that help and completion are instant."""
