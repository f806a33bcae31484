"""Translates `.proto` text (proto2 and proto3) to a FileDescriptorProto.

The grammar is that of `proto-schema-parser` (ANTLR). Its parse tree is translated here and not by the library, whose
own syntax tree loses comments inside declarations, numbers in hexadecimal and octal, and strings in several parts.
Type names stay as they are written: the descriptor pool resolves them. Comments are dropped.

Custom options, `option (a.b) = 1`, are kept uninterpreted: they have no effect on payloads, and two definitions that
differ in them are different. Editions, groups and features are refused by name.

Invariants
    the time is proportional to the number of tokens, about 20 microseconds each, and their number is limited
    the recursion is bounded, because brackets nest at most NESTING_MAX deep and names have at most NAME_PARTS_MAX parts
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NoReturn

from antlr4 import CommonTokenStream, InputStream, Token
from antlr4.error.ErrorListener import ErrorListener
from antlr4.ListTokenSource import ListTokenSource
from google.protobuf import descriptor_pb2, text_encoding
from proto_schema_parser.antlr.ProtobufLexer import ProtobufLexer
from proto_schema_parser.antlr.ProtobufParser import ProtobufParser

from pydanube.model.errors import Invalid
from pydanube.model.limits import PROTO_TEXT_BYTES_MAX

NESTING_MAX: Final = 32
"""How deep messages and option values may nest; protoc has the same limit."""

NAME_PARTS_MAX: Final = 100
TOKENS_MAX: Final = 64 * 1024
"""How many tokens a text may have: with all its names, a field or an enum value has about five."""

FIELD_NUMBER_MAX: Final = (1 << 29) - 1
_INT32_MAX: Final = (1 << 31) - 1
_NUMBER_CHARACTERS_MAX: Final = 40

_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final[dict[str, int]] = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in _Field.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
_INTEGER_RANGES: Final = {
    _SCALARS[name]: (-(1 << bits - 1), (1 << bits - 1) - 1)
    for bits in (32, 64)
    for name in (f"int{bits}", f"sint{bits}", f"sfixed{bits}")
} | {_SCALARS[name]: (0, (1 << bits) - 1) for bits in (32, 64) for name in (f"uint{bits}", f"fixed{bits}")}

_OPENING: Final = frozenset(
    {ProtobufLexer.L_BRACE, ProtobufLexer.L_BRACKET, ProtobufLexer.L_PAREN, ProtobufLexer.L_ANGLE}
)
_CLOSING: Final = frozenset(
    {ProtobufLexer.R_BRACE, ProtobufLexer.R_BRACKET, ProtobufLexer.R_PAREN, ProtobufLexer.R_ANGLE}
)
_END_OF_NAME: Final = frozenset({ProtobufLexer.EQUALS, ProtobufLexer.SEMICOLON})
_COMMENTS: Final = frozenset({ProtobufLexer.LINE_COMMENT, ProtobufLexer.BLOCK_COMMENT})


def translate(text: str) -> Any:
    """Return the FileDescriptorProto of a `.proto` text, without a name. Raises Invalid with place and reason."""
    size = len(text.encode())
    if size > PROTO_TEXT_BYTES_MAX:
        raise Invalid(
            f".proto text of {size} bytes is larger than {PROTO_TEXT_BYTES_MAX}: register it as a descriptor set in "
            f"Base64, or divide it"
        )
    return descriptor_pb2.FileDescriptorProto.FromString(_translate(text))


@lru_cache(maxsize=64)
def _translate(text: str) -> bytes:
    """Return the serialized descriptor; a file that many definitions import is parsed once."""
    serialized: bytes = _Translation().file(_parse(text)).SerializeToString()
    return serialized


# --------------------------------------------------------------------------------------------- syntax


class _SyntaxErrors(ErrorListener):  # type: ignore[misc]  # antlr4 has no types
    """Raises Invalid at the first error of the lexer or of the parser."""

    def syntaxError(  # noqa: N802
        self, recognizer: Any, offending: Any, line: int, column: int, message: str, error: Any
    ) -> None:
        if offending is not None and offending.type == Token.EOF:
            found = "the text ends too early"
        elif offending is not None:
            found = f"{_shortened(offending.text)} is not expected here"
        else:
            found = _shortened(message)
        raise Invalid(f"line {line}:{column + 1}: {found}")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _parse(text: str) -> Any:
    """Return ANTLR's tree of the text, with comments left out."""
    errors = _SyntaxErrors()
    lexer: Any = _make(ProtobufLexer, InputStream(text))
    lexer.removeErrorListeners()
    lexer.addErrorListener(errors)
    tokens, depth, dots = [], 0, 0
    while True:
        token = lexer.nextToken()
        if token.channel != Token.DEFAULT_CHANNEL or token.type in _COMMENTS:
            continue
        tokens.append(token)
        if token.type == Token.EOF:
            break
        depth += (token.type in _OPENING) - (token.type in _CLOSING)
        if token.type == ProtobufLexer.DOT:
            dots += 1
        elif token.type in _END_OF_NAME:
            dots = 0
        if depth > NESTING_MAX:
            raise Invalid(f"line {token.line}:{token.column + 1}: brackets nest more than {NESTING_MAX} deep")
        if dots > NAME_PARTS_MAX:
            raise Invalid(f"line {token.line}:{token.column + 1}: a name has more than {NAME_PARTS_MAX} parts")
        if len(tokens) > TOKENS_MAX:
            raise Invalid(f"line {token.line}:{token.column + 1}: the text has more than {TOKENS_MAX} tokens")
    parser: Any = _make(ProtobufParser, CommonTokenStream(ListTokenSource(tokens)))
    parser.removeErrorListeners()
    parser.addErrorListener(errors)
    return parser.file_()


def _make(kind: Any, source: Any) -> Any:
    """Call a constructor that has no types."""
    return kind(source)


def _fail(place: Any, reason: str) -> NoReturn:
    raise Invalid(f"line {place.start.line}:{place.start.column + 1}: {reason}")


def _natural(place: Any) -> int:
    """Return the value of an unsigned integer in decimal, hexadecimal or octal."""
    digits = place.getText()
    if len(digits) > _NUMBER_CHARACTERS_MAX:
        _fail(place, "the number is too large")
    if digits[:2] in ("0x", "0X"):
        return int(digits[2:], 16)
    try:
        return int(digits, 8 if digits.startswith("0") else 10)
    except ValueError:
        _fail(place, f"{digits} is not a number in octal")


def _field_number(place: Any) -> int:
    number = _natural(place)
    if not 0 < number <= FIELD_NUMBER_MAX:
        _fail(place, f"the field number {number} is not between 1 and {FIELD_NUMBER_MAX}")
    return number


def _enum_number(place: Any) -> int:
    number = _integer(place)
    if not -_INT32_MAX - 1 <= number <= _INT32_MAX:
        _fail(place, f"the number {number} of an enum value does not fit 32 bits")
    return number


class _Terminal:
    """A token as a node with the two attributes that this module uses."""

    def __init__(self, node: Any) -> None:
        self.start = node.symbol
        self.getText = node.getText


def _integer(place: Any) -> int:
    number = _natural(_Terminal(place.INT_LITERAL()))
    return -number if place.MINUS() else number


def _string(place: Any) -> bytes:
    """Return the bytes of a string literal, which may have several parts."""
    try:
        return b"".join(text_encoding.CUnescape(part.getText()[1:-1]) for part in place.STRING_LITERAL())
    except ValueError:
        _fail(place, "the string has an escape sequence that is not known")


def _text(place: Any) -> str:
    try:
        return _string(place).decode()
    except UnicodeDecodeError:
        _fail(place, "the string is not UTF-8")


# ---------------------------------------------------------------------------------------- translation


class _Translation:
    """Translates the tree of one file."""

    def __init__(self) -> None:
        self._proto3 = False

    def file(self, tree: Any) -> Any:
        result = descriptor_pb2.FileDescriptorProto()
        if tree.editionDecl():
            _fail(tree.editionDecl(), "editions are not supported: use proto2 or proto3")
        syntax = _text(tree.syntaxDecl().syntaxLevel().stringLiteral()) if tree.syntaxDecl() else "proto2"
        if syntax not in ("proto2", "proto3"):
            _fail(tree.syntaxDecl(), f"the syntax {syntax!r} is not supported: use proto2 or proto3")
        self._proto3 = syntax == "proto3"
        if self._proto3:
            result.syntax = syntax
        for element in tree.fileElement():
            self._file_element(result, element)
        return result

    def _file_element(self, file: Any, element: Any) -> None:
        if one := element.messageDecl():
            self._message(file.message_type.add(), one)
        elif one := element.enumDecl():
            self._enum(file.enum_type.add(), one)
        elif one := element.optionDecl():
            self._option(file.options, one)
        elif one := element.importDecl():
            self._import(file, one)
        elif one := element.extensionDecl():
            self._extensions(file.extension, file.message_type, one)
        elif one := element.serviceDecl():
            self._service(file.service.add(), one)
        elif one := element.packageDecl():
            if file.package:
                _fail(one, "there is a second package")
            file.package = one.packageName().getText()

    def _import(self, file: Any, place: Any) -> None:
        name = _text(place.importedFileName().stringLiteral())
        if name in file.dependency:
            _fail(place, f"{name} is imported twice")
        if place.PUBLIC():
            file.public_dependency.append(len(file.dependency))
        if place.WEAK():
            file.weak_dependency.append(len(file.dependency))
        file.dependency.append(name)

    def _message(self, message: Any, place: Any) -> None:
        message.name = place.messageName().getText()
        for element in place.messageElement():
            self._message_element(message, element)
        self._add_synthetic_oneofs(message)

    def _message_element(self, message: Any, element: Any) -> None:
        if one := element.messageFieldDecl():
            self._message_field(message.field.add(), one)
        elif one := element.mapFieldDecl():
            self._map_field(message, one)
        elif one := element.oneofDecl():
            self._oneof(message, one)
        elif one := element.messageDecl():
            self._message(message.nested_type.add(), one)
        elif one := element.enumDecl():
            self._enum(message.enum_type.add(), one)
        elif one := element.optionDecl():
            self._option(message.options, one)
        elif one := element.messageReservedDecl():
            self._reserved(message, one)
        elif one := element.extensionRangeDecl():
            self._extension_ranges(message, one)
        elif one := element.extensionDecl():
            self._extensions(message.extension, message.nested_type, one)
        elif one := element.groupDecl():
            _fail(one, "groups are not supported: use a message")

    def _message_field(self, field: Any, place: Any) -> None:
        if one := place.fieldDeclWithCardinality():
            self._labelled_field(field, one)
            return
        if not self._proto3:
            _fail(place, f"{place.fieldName().getText()} needs a label in proto2: optional, required or repeated")
        self._field(field, place, place.messageFieldDeclTypeName())

    def _labelled_field(self, field: Any, place: Any) -> None:
        self._field(field, place, place.fieldDeclTypeName())
        label = place.fieldCardinality()
        if label.REPEATED():
            field.label = _Field.LABEL_REPEATED
        elif label.REQUIRED():
            if self._proto3:
                _fail(place, f"{field.name} is required, which proto3 does not have")
            field.label = _Field.LABEL_REQUIRED
        elif self._proto3:
            field.proto3_optional = True

    def _field(self, field: Any, place: Any, type_name: Any) -> None:
        field.name = place.fieldName().getText()
        field.number = _field_number(place.fieldNumber())
        field.label = _Field.LABEL_OPTIONAL
        _set_type(field, type_name.getText())
        for option in self._compact_options(place):
            self._field_option(field, option)

    def _map_field(self, message: Any, place: Any) -> None:
        field = message.field.add(
            name=place.fieldName().getText(),
            number=_field_number(place.fieldNumber()),
            label=_Field.LABEL_REPEATED,
        )
        entry = message.nested_type.add(name=_entry_name(field.name))
        entry.options.map_entry = True
        key = entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL)
        _set_type(key, place.mapType().mapKeyType().getText())
        value = entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL)
        _set_type(value, place.mapType().typeName().getText())
        field.type, field.type_name = _Field.TYPE_MESSAGE, entry.name
        for option in self._compact_options(place):
            self._field_option(field, option)

    def _oneof(self, message: Any, place: Any) -> None:
        index = len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=place.oneofName().getText())
        for element in place.oneofElement():
            if one := element.oneofFieldDecl():
                field = message.field.add(oneof_index=index)
                self._field(field, one, one.oneofFieldDeclTypeName())
            elif one := element.optionDecl():
                self._option(oneof.options, one)
            elif one := element.oneofGroupDecl():
                _fail(one, "groups are not supported: use a message")

    def _add_synthetic_oneofs(self, message: Any) -> None:
        """Give each `optional` field of proto3 a oneof of its own, as protoc does; they come after the real ones."""
        names = {one.name for one in message.field} | {one.name for one in message.oneof_decl}
        for field in message.field:
            if field.proto3_optional:
                name = f"_{field.name}"
                while name in names:
                    name = f"X{name}"
                names.add(name)
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=name)

    def _reserved(self, message: Any, place: Any) -> None:
        if place.tagRanges():
            for start, end in _tag_ranges(place.tagRanges()):
                message.reserved_range.add(start=start, end=end)
        if place.names():
            message.reserved_name.extend(_text(name) for name in place.names().stringLiteral())

    def _extension_ranges(self, message: Any, place: Any) -> None:
        if self._proto3:
            _fail(place, "proto3 has no extension ranges")
        for start, end in _tag_ranges(place.tagRanges()):
            extensions = message.extension_range.add(start=start, end=end)
            for option in self._compact_options(place):
                self._option(extensions.options, option)

    def _enum(self, enum: Any, place: Any) -> None:
        enum.name = place.enumName().getText()
        for element in place.enumElement():
            if one := element.enumValueDecl():
                value = enum.value.add(name=one.enumValueName().getText(), number=_enum_number(one.enumValueNumber()))
                for option in self._compact_options(one):
                    self._option(value.options, option)
            elif one := element.optionDecl():
                self._option(enum.options, one)
            elif one := element.enumReservedDecl():
                _enum_reserved(enum, one)

    def _extensions(self, extensions: Any, nested: Any, place: Any) -> None:
        extendee = place.extendedMessage().getText()
        for element in place.extensionElement():
            if one := element.extensionFieldDecl():
                field = extensions.add(extendee=extendee)
                if labelled := one.fieldDeclWithCardinality():
                    self._labelled_field(field, labelled)
                    if field.label == _Field.LABEL_REQUIRED:
                        _fail(one, "an extension cannot be required")
                elif self._proto3:
                    self._field(field, one, one.extensionFieldDeclTypeName())
                else:
                    _fail(one, f"{one.fieldName().getText()} needs a label in proto2: optional or repeated")
            elif one := element.groupDecl():
                _fail(one, "groups are not supported: use a message")

    def _service(self, service: Any, place: Any) -> None:
        service.name = place.serviceName().getText()
        for element in place.serviceElement():
            if one := element.methodDecl():
                self._method(service.method.add(), one)
            elif one := element.optionDecl():
                self._option(service.options, one)

    def _method(self, method: Any, place: Any) -> None:
        method.name = place.methodName().getText()
        request, reply = place.inputType().messageType(), place.outputType().messageType()
        method.input_type = request.methodDeclTypeName().getText()
        method.output_type = reply.methodDeclTypeName().getText()
        if request.STREAM():
            method.client_streaming = True
        if reply.STREAM():
            method.server_streaming = True
        if place.L_BRACE():
            method.options.SetInParent()
        for element in place.methodElement():
            if one := element.optionDecl():
                self._option(method.options, one)

    # options

    def _compact_options(self, place: Any) -> list[Any]:
        options = place.compactOptions()
        return options.compactOption() if options else []

    def _field_option(self, field: Any, place: Any) -> None:
        name = place.optionName().getText()
        if name == "default":
            if field.HasField("default_value"):
                _fail(place, "there is a second default")
            if self._proto3:
                _fail(place, f"{field.name} has a default, which proto3 does not have")
            field.default_value = _default(field, place.optionValue())
        elif name == "json_name":
            scalar = place.optionValue().scalarValue()
            if not scalar or not scalar.stringLiteral() or field.HasField("json_name"):
                _fail(place, "json_name is one string")
            field.json_name = _text(scalar.stringLiteral())
        else:
            self._option(field.options, place)

    def _option(self, options: Any, place: Any) -> None:
        """Set an option of protobuf itself, or add a custom one without interpreting it."""
        name = place.optionName().getText()
        if name.startswith("("):
            _add_custom_option(options, place)
            return
        known = options.DESCRIPTOR.fields_by_name.get(name)
        if known is None or name == "uninterpreted_option" or known.message_type is not None:
            _fail(place, f"the option {_shortened(name)} is not supported")
        repeated = hasattr(getattr(options, name), "append")
        if not repeated and options.HasField(name):
            _fail(place, f"the option {name} is set twice")
        value = _option_value(known, place)
        if repeated:
            getattr(options, name).append(value)
        else:
            setattr(options, name, value)


def _set_type(field: Any, name: str) -> None:
    if name in _SCALARS:
        field.type = _SCALARS[name]
    else:
        field.type_name = name  # the pool finds out whether it is a message or an enum


def _entry_name(field: str) -> str:
    """Return the name of the message that holds the entries of a map field, as protoc makes it."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def _tag_ranges(place: Any) -> list[tuple[int, int]]:
    """Return the ranges of field numbers, each with the number after its last one."""
    ranges = []
    for one in place.tagRange():
        start = end = _field_number(one.tagRangeStart().fieldNumber())
        if last := one.tagRangeEnd():
            end = FIELD_NUMBER_MAX if last.MAX() else _field_number(last.fieldNumber())
        if end < start:
            _fail(one, f"the range {start} to {end} is empty")
        ranges.append((start, end + 1))
    return ranges


def _enum_reserved(enum: Any, place: Any) -> None:
    if place.enumValueRanges():
        for one in place.enumValueRanges().enumValueRange():
            start = end = _enum_number(one.enumValueRangeStart().enumValueNumber())
            if last := one.enumValueRangeEnd():
                end = _INT32_MAX if last.MAX() else _enum_number(last.enumValueNumber())
            if end < start:
                _fail(one, f"the range {start} to {end} is empty")
            enum.reserved_range.add(start=start, end=end)
    if place.names():
        enum.reserved_name.extend(_text(name) for name in place.names().stringLiteral())


def _default(field: Any, place: Any) -> str:
    """Return the default of a field as FieldDescriptorProto holds it."""
    scalar = place.scalarValue()
    kind = field.type if field.HasField("type") else None
    if scalar:
        if kind in _INTEGER_RANGES and scalar.intLiteral():
            number = _integer(scalar.intLiteral())
            low, high = _INTEGER_RANGES[kind]
            if not low <= number <= high:
                _fail(place, f"the default {number} does not fit the type of {field.name}")
            return str(number)
        if kind in (_Field.TYPE_FLOAT, _Field.TYPE_DOUBLE):
            value = _float(scalar)
            if value is not None:
                return repr(value)
        if kind == _Field.TYPE_STRING and scalar.stringLiteral():
            return _text(scalar.stringLiteral())
        if kind == _Field.TYPE_BYTES and scalar.stringLiteral():
            escaped: str = text_encoding.CEscape(_string(scalar.stringLiteral()), as_utf8=False)
            return escaped
        if scalar.identifier() and (
            kind is None or (kind == _Field.TYPE_BOOL and scalar.getText() in ("true", "false"))
        ):
            word: str = scalar.getText()
            return word
    _fail(place, f"the default is not a value of the type of {field.name}")


def _float(scalar: Any) -> float | None:
    """Return the value of a number, or None if the scalar is none. `inf` and `nan` are numbers."""
    if scalar.intLiteral():
        return float(_integer(scalar.intLiteral()))
    if one := scalar.floatLiteral() or scalar.specialFloatLiteral():
        return float(one.getText())
    if scalar.identifier() and scalar.getText() in ("inf", "nan"):
        return float(scalar.getText())
    return None


def _option_value(known: Any, place: Any) -> Any:
    """Return the value of an option that protobuf itself defines, checked against the type of the option."""
    scalar = place.optionValue().scalarValue()
    if scalar:
        if known.enum_type is not None and scalar.identifier():
            value = known.enum_type.values_by_name.get(scalar.getText())
            if value is not None:
                return value.number
        if known.type == _Field.TYPE_BOOL and scalar.getText() in ("true", "false"):
            return scalar.getText() == "true"
        if known.type == _Field.TYPE_STRING and scalar.stringLiteral():
            return _text(scalar.stringLiteral())
    _fail(place, f"the value of the option {known.name} is not of its type")


def _add_custom_option(options: Any, place: Any) -> None:
    option = options.uninterpreted_option.add()
    _add_name_parts(option, place.optionName())
    value = place.optionValue()
    if scalar := value.scalarValue():
        if scalar.stringLiteral():
            option.string_value = _string(scalar.stringLiteral())
        elif scalar.intLiteral():
            number = _integer(scalar.intLiteral())
            if not -(1 << 63) <= number < 1 << 64:
                _fail(place, "the number is too large")
            if number < 0:
                option.negative_int_value = number
            else:
                option.positive_int_value = number
        elif scalar.floatLiteral() or scalar.specialFloatLiteral():
            option.double_value = float(scalar.getText())
        else:
            option.identifier_value = scalar.getText()
    else:
        option.aggregate_value = " ".join(_leaves(value.messageLiteralWithBraces().messageTextFormat()))


def _add_name_parts(option: Any, name: Any) -> None:
    if name.typeName():
        option.name.add(name_part=name.typeName().getText(), is_extension=True)
    else:
        option.name.add(name_part=name.identifier().getText(), is_extension=False)
    for part in name.optionName():
        _add_name_parts(option, part)


def _leaves(place: Any) -> list[str]:
    """Return the text of each token below a node."""
    if place.getChildCount() == 0:
        return [place.getText()] if hasattr(place, "symbol") else []
    return [leaf for child in place.getChildren() for leaf in _leaves(child)]
