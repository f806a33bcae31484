"""Value types: what is encoded comes back equal, for every kind of schema, and what does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import avro.schema
import fastavro
import msgspec
import pyarrow as pa
import pydantic
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, text_format, timestamp_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydanube.client.typed.schema_sources import value_type_of
from pydanube.client.typed.value_type import ValueType, WriterSchema
from pydanube.formats import parse_schema
from pydanube.formats.columns import column_fields
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(msgspec.Struct):
    name: str
    price: float
    count: int = 1


class Order(msgspec.Struct, tag="order"):
    id: int
    customer: str | None
    items: list[Item]
    placed: datetime
    total: Decimal
    token: UUID
    colour: Colour
    raw: bytes
    attributes: dict[str, int]


class Visitor(msgspec.Struct):
    name: str
    born: Annotated[datetime, msgspec.Meta(description="of a guest")]


@dataclasses.dataclass
class Point:
    x: float
    y: float
    label: str | None = None
    tags: tuple[str, ...] = ()
    inner: Point | None = None


class Address(pydantic.BaseModel):
    street: str
    zip_code: Annotated[str, pydantic.Field(alias="zipCode", min_length=1)]


class Person(pydantic.BaseModel):
    name: str
    age: int | None = None
    weight: float = 1.5
    born: datetime | None = None
    addresses: list[Address] = []
    kind: Literal["a", "b"] = "a"

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shown(self) -> str:
        return self.name.upper()


class Invoice(pydantic.BaseModel):
    """Reads other JSON than it writes."""

    total: Decimal
    share: Decimal | None = None
    due: date
    raw: pydantic.Json[list[int]]
    number: UUID

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def doubled(self) -> Decimal:
        return 2 * self.total


class Refund(msgspec.Struct, tag="refund"):
    reason: str


@pydantic.dataclasses.dataclass
class Reading:
    sensor: str
    value: float


SQL_INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
TIMES = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)).map(lambda t: t.replace(tzinfo=UTC))  # noqa: DTZ001

ITEMS = st.builds(Item, TEXT, FLOATS, SQL_INTS)
ORDERS = st.builds(
    Order,
    SQL_INTS,
    st.none() | TEXT,
    st.lists(ITEMS, max_size=3),
    TIMES,
    st.decimals(allow_nan=False, allow_infinity=False),
    st.uuids(),
    st.sampled_from(Colour),
    st.binary(),
    st.dictionaries(TEXT, SQL_INTS, max_size=3),
)
POINTS = st.recursive(
    st.builds(Point, FLOATS, FLOATS, st.none() | TEXT, st.lists(TEXT, max_size=3).map(tuple)),
    lambda inner: st.builds(Point, FLOATS, FLOATS, inner=inner),
    max_leaves=3,
)
PEOPLE = st.builds(
    Person,
    name=TEXT,
    age=st.none() | st.integers(),
    weight=FLOATS,
    born=st.none() | TIMES,
    addresses=st.lists(st.builds(Address, street=TEXT, zipCode=TEXT.filter(bool)), max_size=2),
    kind=st.sampled_from(["a", "b"]),
)
READINGS = st.builds(Reading, TEXT, FLOATS)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
INVOICES = st.builds(
    Invoice,
    total=DECIMALS,
    share=st.none() | DECIMALS,
    due=st.dates(),
    raw=st.lists(st.integers()).map(lambda some: msgspec.json.encode(some).decode()),
    number=st.uuids(),
)

AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "price", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "raw", "type": "bytes"},
    ],
}
AVRO_VALUES = st.fixed_dictionaries(
    {
        "id": SQL_INTS,
        "customer": st.none() | TEXT,
        "price": FLOATS,
        "tags": st.lists(TEXT, max_size=3),
        "placed": st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1)).map(lambda t: t.replace(tzinfo=UTC)),  # noqa: DTZ001
        "raw": st.binary(),
    }
)
JSON_SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": ["string", "null"]}},
    "required": ["id"],
}
JSON_VALUES = st.fixed_dictionaries({"id": SQL_INTS}, optional={"name": st.none() | TEXT, "more": st.lists(FLOATS)})

NUMBERS = st.integers(-(2**1000) + 1, 2**1000 - 1)
TIMESTAMPS = st.builds(
    timestamp_pb2.Timestamp, seconds=st.integers(-62135596800, 253402300799), nanos=st.integers(0, 999_999_999)
)
STRUCTS = st.builds(
    lambda values: struct_pb2.ListValue(values=[struct_pb2.Value(string_value=one) for one in values]), st.lists(TEXT)
)
FIELDS = st.builds(descriptor_pb2.FieldDescriptorProto, name=TEXT, number=st.integers(1, 2**29 - 1))


def generated(*, required: bool = False) -> Any:
    """Return a class as protoc generates it: of the second message of a file that imports two others."""
    pool = descriptor_pool.DescriptorPool()
    for imported in (timestamp_pb2, descriptor_pb2):
        pool.AddSerializedFile(imported.DESCRIPTOR.serialized_pb)
    label = "LABEL_REQUIRED" if required else "LABEL_OPTIONAL"
    texts = [
        """name: "shop/item.proto" package: "shop" syntax: "proto3"
           message_type { name: "Item" field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }""",
        f"""name: "shop/order.proto" package: "shop" syntax: "{"proto2" if required else "proto3"}"
           dependency: ["google/protobuf/timestamp.proto", "shop/item.proto"]
           message_type {{ name: "Unused" field {{ name: "a" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }} }}
           message_type {{ name: "Order"
             field {{ name: "id" number: 1 type: TYPE_INT64 label: {label} }}
             field {{ name: "items" number: 2 type: TYPE_MESSAGE type_name: ".shop.Item" label: LABEL_REPEATED }}
             field {{ name: "placed" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp"
                      label: LABEL_OPTIONAL }} }}""",
    ]
    for text in texts:
        pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ProtoOrder = generated()
ProtoOrder2 = generated(required=True)
PROTO_ORDERS = st.builds(
    lambda number, names, seconds: ProtoOrder(
        id=number, items=[{"name": one} for one in names], placed={"seconds": seconds}
    ),
    SQL_INTS,
    st.lists(TEXT, max_size=3),
    st.integers(0, 2**31),
)

KINDS: list[tuple[Any, st.SearchStrategy[Any], SchemaFormat]] = [
    (Order, ORDERS, SchemaFormat.JSON),
    (Point, POINTS, SchemaFormat.JSON),
    (Person, PEOPLE, SchemaFormat.JSON),
    (Reading, READINGS, SchemaFormat.JSON),
    (Invoice, INVOICES, SchemaFormat.JSON),
    (Person | Invoice, PEOPLE | INVOICES, SchemaFormat.JSON),
    (Order | Refund | None, ORDERS | st.none() | st.builds(Refund, TEXT), SchemaFormat.JSON),
    (list[Invoice], st.lists(INVOICES, max_size=3), SchemaFormat.JSON),
    (list[Point], st.lists(POINTS, max_size=3), SchemaFormat.JSON),
    (dict[str, Item], st.dictionaries(TEXT, ITEMS, max_size=3), SchemaFormat.JSON),
    (JSON_SCHEMA, JSON_VALUES, SchemaFormat.JSON),
    (AVRO_SCHEMA, AVRO_VALUES, SchemaFormat.AVRO),
    (fastavro.parse_schema(AVRO_SCHEMA), AVRO_VALUES, SchemaFormat.AVRO),
    (avro.schema.parse(msgspec.json.encode(AVRO_SCHEMA).decode()), AVRO_VALUES, SchemaFormat.AVRO),
    (SchemaDefinition(SchemaFormat.AVRO, '{"type": "array", "items": "long"}'), st.lists(SQL_INTS), SchemaFormat.AVRO),
    (ProtoOrder, PROTO_ORDERS, SchemaFormat.PROTOBUF),
    (timestamp_pb2.Timestamp, TIMESTAMPS, SchemaFormat.PROTOBUF),
    (struct_pb2.ListValue, STRUCTS, SchemaFormat.PROTOBUF),
    (descriptor_pb2.FieldDescriptorProto, FIELDS, SchemaFormat.PROTOBUF),
    (str, TEXT, SchemaFormat.STRING),
    (int, NUMBERS, SchemaFormat.NUMBER),
    (float, FLOATS, SchemaFormat.NUMBER),
    (bytes, st.binary(), SchemaFormat.BYTES),
]


def kind_name(value: object) -> str:
    return getattr(value, "__name__", "") or type(value).__name__ if isinstance(value, type | dict) else ""


@pytest.mark.parametrize(("schema", "values", "schema_format"), KINDS, ids=kind_name)
def test_what_is_encoded_comes_back_equal_and_fits_the_registered_schema(
    schema: Any, values: st.SearchStrategy[Any], schema_format: SchemaFormat
) -> None:
    kind = value_type_of(schema)
    assert kind.definition.format is schema_format
    registered = parse_schema(kind.definition)  # what the broker does
    assert parse_schema(value_type_of(schema).definition).canonical == registered.canonical
    decode, decode_written = kind.decoder(), kind.decoder_of(WriterSchema(kind.definition, {}))

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(values, max_size=4))
    def check(many: list[Any]) -> None:
        payloads = kind.encode_many(many)
        assert payloads == [kind.encode(one) for one in many]
        assert registered.check(payloads) is None
        assert list(map(decode, payloads)) == many
        assert list(map(decode_written, payloads)) == many
        assert [type(decode(one)) for one in payloads] == [type(one) for one in many]

    check()


class Measured(msgspec.Struct):
    one: float | None
    many: list[float | None] = []


class MeasuredModel(pydantic.BaseModel):
    one: float | None
    many: list[float | None] = []


class SubItem(Item):
    more: int = 0


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        (Item, {"name": "a", "price": 1.0}, "a dict is not a value of the schema Item"),
        (Item, SubItem("a", 1.0), "a SubItem is not a value of the schema Item"),
        (Item, Item("a", math.nan), "NaN or infinity"),
        (Item, Item("\ud800", 1.0), "cannot be written as JSON"),
        (Point, Point(math.inf, 1.0), "NaN or infinity"),
        (Measured, Measured(math.nan, [None]), "NaN or infinity"),
        (Measured, Measured(None, [None, math.inf]), "NaN or infinity"),
        (MeasuredModel, MeasuredModel(one=math.nan, many=[None]), "NaN or infinity"),
        (MeasuredModel, MeasuredModel(one=None, many=[None, -math.inf]), "NaN or infinity"),
        (Person, Person(name="a", weight=math.inf), "NaN or infinity"),
        (Person, Person.model_construct(name=3), "cannot be written as JSON"),
        (Person, Point(1.0, 2.0), "a Point is not a value of the schema Person"),
        (str, 3, "a int is not a value of the schema str"),
        (str, "\ud800", "cannot be written"),
        (int, "3", "a str is not a value of the schema int"),
        (int, True, "a bool is not a value of the schema int"),
        (int, 1.5, "a float is not a value of the schema int"),
        (float, math.nan, "not a number"),
        (bytes, "text", "a str is not a value of the schema bytes"),
        (AVRO_SCHEMA, {"id": "one"}, "does not fit the schema"),
        (JSON_SCHEMA, {"id": "one"}, "id"),
        (timestamp_pb2.Timestamp, struct_pb2.ListValue(), "a ListValue is not a value of the schema Timestamp"),
        (ProtoOrder2, ProtoOrder2(), "cannot be written: .*required"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(schema: Any, value: Any, reason: str) -> None:
    kind = value_type_of(schema)
    with pytest.raises(Invalid, match=reason):
        kind.encode(value)
    with pytest.raises(Invalid, match="value 0 of 1: "):
        kind.encode_many([value])


def test_the_place_of_a_wrong_value_among_many_is_named() -> None:
    kind = value_type_of(Item)
    values = [Item("a", 1.0), Item("b", math.inf), Item("c", 1.0)]
    with pytest.raises(Invalid, match=r"value 1 of 3: .*NaN or infinity"):
        kind.encode_many(values)
    with pytest.raises(Invalid, match="value 2 of 3: a str is not"):
        kind.encode_many([values[0], values[2], "c"])
    assert kind.encode_many([]) == []


class Node(msgspec.Struct):
    anything: Any = None


def test_none_beside_floats_is_no_nan() -> None:
    values: list[Any] = [Measured(None, [1.5, None]), Measured(1.0)]
    assert list(map(value_type_of(Measured).decoder(), value_type_of(Measured).encode_many(values))) == values
    models = [MeasuredModel(one=None, many=[1.5, None])]
    assert value_type_of(MeasuredModel).encode_many(models) == [b'{"one":null,"many":[1.5,null]}']


def test_nan_in_a_field_of_any_type_is_found() -> None:
    kind = value_type_of(Node)
    assert kind.encode(Node(None)) == b'{"anything":null}'
    with pytest.raises(Invalid, match="NaN or infinity"):
        kind.encode(Node([{"a": math.nan}]))


@pytest.mark.parametrize("schema", [object, dict, complex, "text", 3, Colour, lambda: None, Exception("x")])
def test_what_is_no_schema_is_refused_with_what_may_be_used(schema: Any) -> None:
    with pytest.raises(Invalid, match=r"schema=.* is not a schema: use the class of a msgspec Struct"):
        value_type_of(schema)


@dataclasses.dataclass
class Odd:
    one: complex


class OddModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    one: Exception


def test_what_pydantic_writes_is_what_its_schema_says() -> None:
    written = msgspec.json.decode(value_type_of(Invoice).definition.text)
    assert written["properties"]["total"] == {"title": "Total", "type": "string", "format": "decimal"}
    assert "doubled" not in written["properties"]
    assert written["required"] == ["total", "due", "raw", "number"]


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        (Order | Refund, Item("a", 1.0), "a Item is not a value of the schema .*Order | .*Refund"),
        (Person | Invoice, Reading("a", 1.0), "a Reading is not a value of the schema"),
        (list[Point], Point(1.0, 2.0), r"a Point is not a value of the schema list\[.*Point\]"),
        (list[Point], [Point(1.0, math.nan)], "NaN"),
    ],
)
def test_a_value_of_none_of_the_alternatives_is_refused(schema: Any, value: Any, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        value_type_of(schema).encode(value)


@pytest.mark.parametrize("schema", [Odd, OddModel, Item | Refund, list[Odd]])
def test_a_class_without_a_json_schema_is_refused(schema: Any) -> None:
    with pytest.raises(Invalid, match="has no JSON Schema"):
        value_type_of(schema)


@pytest.mark.parametrize("schema", [{"type": "record", "name": "x"}, {"type": "nonsense"}, {"type": {1, 2}}])
def test_a_dict_that_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        value_type_of(schema)


def test_a_nested_protobuf_message_is_refused() -> None:
    with pytest.raises(Invalid, match="nested in another message"):
        value_type_of(descriptor_pb2.UninterpretedOption.NamePart)


def test_a_protobuf_payload_without_a_required_field_is_refused() -> None:
    with pytest.raises(Invalid, match="required fields are missing: id"):
        value_type_of(ProtoOrder2).decoder()(b"")


def test_the_message_of_a_protobuf_schema_is_the_one_of_the_class() -> None:
    kind = value_type_of(descriptor_pb2.FieldDescriptorProto)
    parsed: Any = parse_schema(kind.definition)
    assert parsed.message_at([0]).DESCRIPTOR.full_name == "google.protobuf.FieldDescriptorProto"
    assert parsed.decode(kind.encode(descriptor_pb2.FieldDescriptorProto(name="a"))).name == "a"


def written(kind: ValueType[Any]) -> WriterSchema:
    return WriterSchema(kind.definition, {})


class ItemWithMore(msgspec.Struct):
    name: str
    price: float
    note: str = "none"


def test_another_version_is_read_as_the_own_one() -> None:
    payload = value_type_of(Item).encode(Item("a", 2.0, 3))
    newer = value_type_of(ItemWithMore)
    assert newer.decoder_of(written(value_type_of(Item)))(payload) == ItemWithMore("a", 2.0)
    renamed = {"type": "record", "name": "Order", "fields": [
        {"name": "price", "type": "double"},
        {"name": "number", "type": "double", "aliases": ["id"]},
        {"name": "state", "type": "string", "default": "new"},
    ]}  # fmt: skip
    writer, reader = value_type_of(AVRO_SCHEMA), value_type_of(renamed)
    value = {
        "id": 7,
        "customer": None,
        "price": 1.5,
        "tags": [],
        "placed": datetime(2026, 1, 1, tzinfo=UTC),
        "raw": b"",
    }
    read = reader.decoder_of(written(writer))(writer.encode(value))
    assert read == {"price": 1.5, "number": 7.0, "state": "new"}


def test_libraries_are_imported_only_for_the_schemas_that_need_them() -> None:
    program = """
import dataclasses, sys
import pydanube.client
from pydanube.client.typed.schema_sources import value_type_of

@dataclasses.dataclass
class Order:
    id: int

for schema in (Order, str, int):
    value_type_of(schema)
print([name for name in ("pydantic", "fastavro", "avro", "jsonschema_rs", "google.protobuf") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("schema", [Item, Person, AVRO_SCHEMA, timestamp_pb2.Timestamp, int])
def test_another_format_cannot_be_read(schema: Any) -> None:
    with pytest.raises(Invalid, match="data of the format string cannot be read as"):
        value_type_of(schema).decoder_of(written(value_type_of(str)))


def test_a_number_that_is_not_whole_is_no_int() -> None:
    with pytest.raises(Invalid, match=r"1\.5 is not a whole number"):
        value_type_of(int).decoder()(b"1.5")
    assert value_type_of(float).decoder()(b"1") == 1.0
    assert type(value_type_of(float).decoder()(b"1")) is float
    assert value_type_of(float).encode(3) == b"3.0"


def test_generated_json_schemas_are_closed_unless_the_class_says_otherwise() -> None:
    class Open(pydantic.BaseModel, extra="allow"):
        inner: Address

    document = msgspec.json.decode(value_type_of(Open).definition.text)
    assert document["additionalProperties"] is True
    assert document["$defs"]["Address"]["additionalProperties"] is False
    assert msgspec.json.decode(value_type_of(Point).definition.text)["$defs"]["Point"]["additionalProperties"] is False


def test_times_of_dataclasses_and_structs_are_columns_of_times() -> None:
    @dataclasses.dataclass
    class Stay:
        room: str
        came: datetime
        left: datetime | None
        visits: list[datetime]
        nights: dict[str, list[datetime | None]]
        guest: Visitor
        note: str | None = None

    time = pa.timestamp("us", tz="UTC")
    columns = {one.name: one.type for one in column_fields(parse_schema(value_type_of(Stay).definition))}
    assert columns == {
        "room": pa.string(),
        "came": time,
        "left": time,
        "visits": pa.list_(time),
        "nights": pa.map_(pa.string(), pa.list_(time)),
        "guest": pa.struct({"name": pa.string(), "born": time}),
        "note": pa.string(),
    }
