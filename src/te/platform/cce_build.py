"""Settings of a build, under the name of 2019."""

from tbe.common.buildcfg import build_config, build_config_update

__all__ = ["build_config", "build_config_update"]
