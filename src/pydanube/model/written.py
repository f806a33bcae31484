"""Values that are text wherever they leave the process, such as `user:alice` or `/default/orders-*`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar, dataclass_transform

T = TypeVar("T")


class Written:
    """Base of values that `str` writes and `parse` reads. A codec that meets one calls these two."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` has written, or what a user writes. Raises Invalid."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Callable[[str], Self], tuple[str]]:
        return type(self).parse, (str(self),)


@dataclass_transform(frozen_default=True, order_default=True)
def written(kind: type[T]) -> type[T]:
    """Make a frozen and ordered dataclass of a `Written` class, which msgspec does not take for one: it would write the
    fields instead of the text."""
    made = dataclass(frozen=True, slots=True, order=True)(kind)
    delattr(made, "__dataclass_fields__")
    return made
