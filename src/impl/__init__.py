"""The package operator files belong to; folders named `impl` on the import path are part of it."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
