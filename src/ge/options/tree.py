"""A door that is a tree: sections with options as attributes, checked when they are set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ge.options.table import Option, tell_idle, unknown, view

__all__ = ["Section"]


class Section:
    """A section of a door's tree; the root holds the values of all.

    >>> config = Section("torchair", "config")
    >>> config.ge_config.precision_mode = "force_fp32"
    >>> config.ge_config.precision_mode
    'force_fp32'
    """

    _door: str
    _label: str
    _path: str
    _values: dict[str, Any]
    _changed: Callable[[str], None]

    def __init__(
        self,
        door: str,
        label: str,
        path: str = "",
        values: dict[str, Any] | None = None,
        changed: Callable[[str], None] = lambda name: None,
    ) -> None:
        own = {"_door": door, "_label": label, "_path": path, "_changed": changed}
        self.__dict__.update(own, _values={} if values is None else values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._path}{name}"
        option = view(self._door).get(path)
        if option is not None:
            return self._values.get(path, getattr(option.default, "value", option.default))
        if name not in dir(self):
            raise unknown(name, dir(self), self._label)
        return Section(self._door, f"{self._label}.{name}", f"{path}.", self._values, self._changed)

    def __setattr__(self, name: str, value: Any) -> None:
        path, spelling = f"{self._path}{name}", f"{self._label}.{name}"
        option = view(self._door).get(path)
        if option is None:
            if name in dir(self):
                raise AttributeError(f"{spelling} is a group of options")
            raise unknown(name, dir(self), self._label)
        if value is None:
            self._values.pop(path, None)
        else:
            parsed = option.parse(value, spelling)
            self._values[path] = getattr(parsed, "value", parsed)
            tell_idle(option, self._door, spelling)
        self._changed(path)

    def __dir__(self) -> list[str]:
        below = (path.removeprefix(self._path) for path in view(self._door) if path.startswith(self._path))
        return sorted({path.partition(".")[0] for path in below})

    def _given(self) -> Iterator[tuple[Option, Any]]:
        """The options that were set and that have an effect at this door, with their parsed values."""
        for path, value in self._values.items():
            option = view(self._door)[path]
            if not option.idle_at(self._door):
                yield option, option.parse(value)

    def as_dict(self) -> dict[str, Any]:
        """All values, nested."""
        found = {name: getattr(self, name) for name in dir(self)}
        return {n: value.as_dict() if isinstance(value, Section) else value for n, value in found.items()}
