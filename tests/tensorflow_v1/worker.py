"""Runs version-1 scripts one after another in one process: reads requests, answers each with a line of JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback

from npu_bridge.version1 import run_script


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what native code prints is not an answer
    for line in sys.stdin:
        script, arguments, folder = json.loads(line)
        os.chdir(folder)
        printed = io.StringIO()
        answer = {}
        try:
            with contextlib.redirect_stdout(printed):
                run_script(script, arguments)
            answer["result"] = json.loads(printed.getvalue().strip().splitlines()[-1])
        except BaseException:
            answer["error"] = printed.getvalue()[-3000:] + traceback.format_exc()[-6000:]
        import tensorflow as tf

        tf.compat.v1.reset_default_graph()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
