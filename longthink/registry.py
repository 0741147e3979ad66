"""Names for the things that people add: tasks, models, recipes, studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from longthink.errors import unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """A dictionary that is filled by a decorator and whose look-ups fail with a helpful sentence."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        def register(item: T) -> T:
            if name in self._items:
                raise ValueError(f"the {self.kind} {name!r} is registered twice")
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
