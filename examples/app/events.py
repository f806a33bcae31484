"""What the three services tell each other."""

from __future__ import annotations

from pydantic import BaseModel


class Order(BaseModel):
    table: str
    drink: str
    count: int = 1


class Invoice(BaseModel):
    table: str
    total: float


class Served(BaseModel):
    table: str
    drink: str
