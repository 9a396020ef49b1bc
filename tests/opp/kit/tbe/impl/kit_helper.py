"""What operator files of the kit share."""

from impl.util.platform_adapter import tbe


def step(x, operation, value):
    return tbe.vcmpsel(x, 0, operation, value, 0)
