"""`npu_device.global_options()`: TensorFlow 2's view of the option table.

Effective options are set in `tf_adapter.options`; others are checked, and reported once to have no effect.
"""

from __future__ import annotations

from ge.options.record import meaning
from ge.options.table import OPTIONS, tell_once, view
from ge.options.tree import Section
from tf_adapter.options import options

__all__ = ["global_options"]


class _GlobalOptions(Section):
    """The root of the option tree; its options are process-wide."""

    def __init__(self) -> None:
        super().__init__("npu_device", "npu_device.global_options()", changed=self._apply)
        self.__dict__["_applied"] = {}

    def _apply(self, path: str) -> None:
        """Set the process options that depend on the changed option."""
        if path == "mix_compile_mode":
            self._allow_host_fallback()
        given = {option.name: value for option, value in self._given()}
        before, after = self._applied, meaning(given)
        self.__dict__["_applied"] = after
        name = view("npu_device")[path].name
        touched = set(meaning({name: given[name]}) if name in given else ())
        touched |= {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
        options.set(**{n: after.get(n, OPTIONS[n].default) for n in touched})

    def _allow_host_fallback(self) -> None:
        if self.mix_compile_mode:
            options.allow_host_fallback = True
        else:
            tell_once(
                "mix_compile_mode=False has no effect: operators the NPU lacks run on the host; "
                "tf_adapter.options.allow_host_fallback=False makes them errors"
            )


_TREE = _GlobalOptions()


def global_options() -> Section:
    """The process-wide options.

    >>> global_options().precision_mode = "must_keep_origin_dtype"
    >>> global_options().precision_mode
    'must_keep_origin_dtype'
    """
    return _TREE
