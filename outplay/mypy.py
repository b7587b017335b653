"""A plugin for mypy, which ignores decorators of classes by itself (its issue 3135). In pyproject.toml:

[tool.mypy]
plugins = ["outplay.mypy"]

With it, `Counter.remote(…)` and `Counter.options(…)` of a class under `@outplay.remote` have the types that pyright
finds without a plugin.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import TypeInfo
from mypy.plugin import ClassDefContext, Plugin
from mypy.types import Instance

_DECORATOR = "outplay.engine.remote.remote"
_METACLASS = "outplay.engine.remote.RemoteClassType"


class OutplayPlugin(Plugin):
    def get_class_decorator_hook_2(self, fullname: str) -> Callable[[ClassDefContext], bool] | None:
        return _add_remote if fullname in (_DECORATOR, "outplay.remote") else None


def _add_remote(context: ClassDefContext) -> bool:
    """Give the class a metaclass with `remote` and `options`. Returns False if mypy must analyse another file first."""
    symbol = context.api.lookup_fully_qualified_or_none(_METACLASS)
    if symbol is None or not isinstance(symbol.node, TypeInfo):
        return False
    info = context.cls.info
    if info.metaclass_type is None or symbol.node not in info.metaclass_type.type.mro:
        info.declared_metaclass = info.metaclass_type = Instance(symbol.node, [])
    return True


def plugin(_: str) -> type[Plugin]:
    """mypy calls this with its version."""
    return OutplayPlugin
