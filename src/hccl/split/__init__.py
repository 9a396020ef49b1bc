"""How gradients are bundled for the all-reduce, under the names that scripts import."""
