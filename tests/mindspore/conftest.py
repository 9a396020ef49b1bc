"""The tests of the MindSpore door run where MindSpore is installed (`make test-mindspore`)."""

import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only
