"""Import a package without those of its imports that we do not need: they take longer than a tiny cell."""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def later(*names: str, **stand_ins: types.ModuleType) -> Iterator[None]:
    """Context manager: imports of these modules get stand-ins, unless they are imported already.

    A function of a stand-in imports the real module when it is called, so no feature is lost. `stand_ins`: modules to use
    in place of those of the same name.
    """
    made = {name: _Later(name, names) for name in names} | stand_ins
    made = {name: module for name, module in made.items() if name not in sys.modules}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


class _Later(types.ModuleType):
    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        super().__init__(name)
        self.names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # __file__ and __path__, read by code that walks through sys.modules
            raise AttributeError(name)
        if (inner := f"{self.__name__}.{name}") in self.names:
            return _Later(inner, self.names)
        return lambda *args, **kwargs: getattr(importlib.import_module(self.__name__), name)(*args, **kwargs)
