"""TVM's names, as `import te.tvm` finds them."""

from tbe import tvm as _tvm

globals().update({k: v for k, v in vars(_tvm).items() if not k.startswith("_")})
