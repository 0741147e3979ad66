"""Names for the things that people add: tasks, models, recipes, studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from longthink.errors import UserError, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """A dictionary that is filled by a decorator and whose look-ups fail with a helpful sentence."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        if not isinstance(name, str):
            raise UserError(f"A {self.kind} is added by its name, as in .add('mine').")

        def register(item: T) -> T:
            if name in self._items and not _same_place(item, self._items[name]):
                raise UserError(f"There is a {self.kind} named {name!r} already; choose another name for yours.")
            self._items[name] = item
            return item

        return register

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            raise unknown(self.kind, name, self._items)
        return self._items[name]

    def __contains__(self, name: str) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))

    def __len__(self) -> int:
        return len(self._items)


def _same_place(item: object, other: object) -> bool:
    """The same class or function, read again: a notebook's cell is run more than once."""
    place, another = ((getattr(one, "__module__", None), getattr(one, "__qualname__", None)) for one in (item, other))
    return None not in place and place == another
