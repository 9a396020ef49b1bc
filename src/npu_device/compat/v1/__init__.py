"""Version-1 names: `from npu_device.compat.v1.npu_init import *`."""
