"""Parses model files and framework graphs into GE graphs, using the plugins of ge.ops."""
