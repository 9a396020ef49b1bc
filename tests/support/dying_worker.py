"""A worker of the conformance pool that dies of some cases."""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    sys.stdin.readline()
    print("ready", flush=True)
    for line in sys.stdin:
        if json.loads(line)[1] == "bad":
            os.abort()
        print(json.dumps({"status": "npu", "reason": ""}), flush=True)
