"""TVM's names, as `import te.tvm` and `from te.tvm.target import cce` find them."""

import sys

from tbe import tvm as _tvm

globals().update({k: v for k, v in vars(_tvm).items() if not k.startswith("_")})
for _name in ("api", "expr", "target", "tensor", "topi"):
    sys.modules[f"{__name__}.{_name}"] = getattr(_tvm, _name)
