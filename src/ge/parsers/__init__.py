"""Model files and framework graphs into GE graphs, driven by the plugins of ge.ops."""
