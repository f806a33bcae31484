"""Types of the fields of lists that come in pages, as `model.paging.PageQuery` has them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pydanube.model.paging import AFTER_CHARACTERS_MAX, FILTER_CHARACTERS_MAX, PAGE_MAX

Filter = Annotated[str, Meta(extra_json_schema={"maxLength": FILTER_CHARACTERS_MAX})]
NameOrder = Annotated[str, Meta(extra_json_schema={"enum": ["name", "-name"]})]
PageLimit = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": PAGE_MAX})]
After = Annotated[str, Meta(max_length=AFTER_CHARACTERS_MAX)]
