"""Hooks that watch a script run, one module a framework; nothing here changes what a script computes."""
