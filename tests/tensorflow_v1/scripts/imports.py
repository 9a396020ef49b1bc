"""Every form of import: what is `tensorflow` in the program's own modules and in installed packages."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path

BUILTIN_IMPORT = builtins.__import__
FORMS = {
    "plain": ("import tensorflow", "tensorflow.placeholder"),
    "as": ("import tensorflow as tf", "tf.placeholder"),
    "several": ("import json, tensorflow as tf, sys", "tf.placeholder, json.loads, sys.path"),
    "submodule": ("import tensorflow.compat.v1", "tensorflow.placeholder"),
    "submodule as": ("import tensorflow.nn as nn", "nn.rnn_cell"),
    "deep as": ("import tensorflow.compat.v2 as version2", "version2.keras"),
    "from": ("from tensorflow import placeholder as hole", "hole"),
    "from submodule": ("from tensorflow.python.framework import ops", "ops.Graph"),
    "contrib": ("import tensorflow.contrib.slim as slim", "slim.conv2d"),
    "in a function": ("def f():\n    import tensorflow as tf\n    return tf\ntf = f()", "tf.placeholder"),
    "missing": (
        "try:\n    import tensorflow.nothing as n\nexcept ModuleNotFoundError as error:\n    e = error",
        "e.name",
    ),
}
folder = Path("modules")
folder.mkdir()
sys.path.insert(0, str(folder.resolve()))
found = {}
for number, (form, (statement, used)) in enumerate(FORMS.items()):
    (folder / f"form{number}.py").write_text(f"{statement}\nused = {used}\n")
    try:
        found[form] = bool(__import__(f"form{number}").used)
    except Exception as error:
        found[form] = f"{type(error).__name__}: {error}"

(folder / "fails.py").write_text("import tensorflow as tf\n\ntf.no_such_name\n")
try:
    __import__("fails")
except AttributeError as error:
    found["line of an error"] = error.__traceback__.tb_next.tb_lineno

import tensorflow as tf
import tf_slim

found["main"] = hasattr(tf, "placeholder") and tf.__name__ == "tensorflow"
found["an installed package"] = not hasattr(sys.modules["tensorflow"], "placeholder")
found["tf_slim"] = tf_slim.__spec__.loader.__class__.__name__ == "SourceFileLoader"
found["Python is unchanged"] = (
    builtins.__import__ is BUILTIN_IMPORT and BUILTIN_IMPORT.__module__ == "builtins"
)
found["bytecode"] = sorted(path.name for path in folder.rglob("*.pyc"))
found["__main__"] = sys.modules["__main__"].__dict__ is globals() and __file__.endswith("imports.py")
print(json.dumps(found))
