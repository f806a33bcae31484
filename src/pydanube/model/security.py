"""The nouns of access control: subjects, resources and the patterns that rules name them by, roles, bindings, API keys.

A resource is text, so that rules, messages and logs name it in the same way:

```
 /                          the cluster as a whole
 /default                   a namespace
 /default/orders            a topic
 /default/orders/billing    a subscription of that topic
 schema:orders-value        a subject of the schema registry
```

A pattern is a resource in which `*` stands for any characters and `?` for one, within a name. It covers what it matches
and everything below that; `/` covers everything, subjects too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from typing import Final, Self

import msgspec

from .errors import Invalid
from .limits import BINDING_ROLES_MAX, COMMENT_CHARACTERS_MAX, GROUPS_MAX, NAME_CHARACTERS_MAX
from .written import Written, written

CLUSTER: Final = "/"
SUBJECT_PREFIX: Final = "schema:"

USER: Final = "user"
SERVICE_ACCOUNT: Final = "service_account"
GROUP: Final = "group"
BROKER_TYPE: Final = "broker"
"""The type of principals that are brokers of this cluster. No rule names them: they may do everything."""

BOUND_TYPES: Final = (USER, SERVICE_ACCOUNT, GROUP)

_PRINCIPAL_NAME: Final = re.compile(r"[^\s:/\x00-\x1f\x7f][^\s\x00-\x1f\x7f]{0,254}")
_KEY_ID: Final = re.compile(r"[0-9a-f]{16}")
_RULE_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_PATTERN_WORD: Final = re.compile(r"[A-Za-z0-9_.*?-]+")
_SUBJECT_PATTERN: Final = re.compile(r"[^\s\x00-\x1f\x7f]+")
_COMPONENTS_MAX: Final = 3
_STARS_MAX: Final = 4
"""Each wildcard of a pattern adds to the time that a comparison takes."""

_ANY_CHARACTER: Final = "."


def subscription_resource(topic: str, subscription: str) -> str:
    return f"{topic}/{subscription}"


def subject_resource(subject: str) -> str:
    """Return the resource of a subject of the schema registry."""
    return f"{SUBJECT_PREFIX}{subject}"


def parse_principal_name(text: str) -> str:
    """Return the name of a principal or group; raise Invalid if it is none."""
    if not isinstance(text, str) or not _PRINCIPAL_NAME.fullmatch(text):
        raise Invalid(
            f"{text!r} is not the name of a principal: use 1 to 255 characters without white space that do not begin "
            f"with ':' or '/'"
        )
    return text


def parse_role_name(text: str) -> str:
    """Return the name of a role; raise Invalid if it is none."""
    return _parse_rule_name("name of a role", text)


def parse_binding_id(text: str) -> str:
    """Return the id of a binding; raise Invalid if it is none."""
    return _parse_rule_name("id of a binding", text)


def parse_key_id(text: str) -> str:
    """Return the id of an API key, which is no secret; raise Invalid if it is none."""
    if not isinstance(text, str) or not _KEY_ID.fullmatch(text):
        # What is here by mistake may be the key itself, so it is not repeated.
        raise Invalid("that is not the id of an API key: 'danube auth keys list' shows the ids")
    return text


def _parse_rule_name(what: str, text: str) -> str:
    if not isinstance(text, str) or not _RULE_NAME.fullmatch(text) or len(text) > NAME_CHARACTERS_MAX:
        raise Invalid(
            f"{text!r} is not the {what}: use 1 to {NAME_CHARACTERS_MAX} ASCII letters, digits, '_', '-' and '.', "
            f"and no '.' in front"
        )
    return text


def check_role_names(roles: Collection[str]) -> None:
    """Raise Invalid if a binding cannot have these roles."""
    if not 0 < len(roles) <= BINDING_ROLES_MAX:
        raise Invalid(f"a binding has 1 to {BINDING_ROLES_MAX} roles, not {len(roles)}")
    for role in roles:
        parse_role_name(role)


def check_groups(groups: Collection[str]) -> None:
    """Raise Invalid if an API key cannot have these groups."""
    if len(groups) > GROUPS_MAX:
        raise Invalid(f"an API key has at most {GROUPS_MAX} groups, not {len(groups)}")
    for group in groups:
        parse_principal_name(group)


def check_comment(comment: str) -> None:
    """Raise Invalid if an API key cannot have this comment."""
    if len(comment) > COMMENT_CHARACTERS_MAX or not all(one.isprintable() for one in comment):
        raise Invalid(f"a comment has at most {COMMENT_CHARACTERS_MAX} printable characters, on one line")


class Action(Enum):
    """What a caller wants to do. The value is the word used in rules, messages and logs."""

    PRODUCE = "produce"
    CONSUME = "consume"
    """Read through a subscription, which moves its cursor."""
    READ = "read"
    """Read without a subscription, which changes nothing."""
    DESCRIBE = "describe"
    CREATE = "create"
    DELETE = "delete"
    ADMINISTER = "administer"
    """Change policies, permissions or the broker itself."""

    def __init__(self, _word: str) -> None:
        self.bit = 1 << len(type(self).__members__)
        """The action as a bit of a set of actions."""

    def __str__(self) -> str:
        return self.value


@written
class BoundSubject(Written):
    """Who a binding is for, as text `type:name`: `user:alice`, `service_account:loader`, `group:ops`."""

    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `type:name`; a name alone is a user's."""
        kind, colon, name = text.partition(":")
        if not colon:
            kind, name = USER, text
        if kind not in BOUND_TYPES:
            raise Invalid(f"{text!r}: {kind!r} is no type of principal: use {', '.join(BOUND_TYPES)}")
        return cls(kind, parse_principal_name(name))

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


@written
class ResourcePattern(Written):
    """The resources that a binding covers; always valid."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        if text.count("*") > _STARS_MAX:
            raise Invalid(f"{text!r} has more than {_STARS_MAX} wildcards *: make several bindings")
        if text.startswith(SUBJECT_PREFIX):
            name = text.removeprefix(SUBJECT_PREFIX)
            if len(name) > NAME_CHARACTERS_MAX or not _SUBJECT_PATTERN.fullmatch(name):
                raise Invalid(f"{text!r} names no subject: write schema:NAME, with * and ? if you like")
            return cls(text)
        words = text.split("/")[1:]
        is_path = text.startswith("/") and len(words) <= _COMPONENTS_MAX
        if text != CLUSTER and not (is_path and all(_is_pattern_word(one) for one in words)):
            raise Invalid(
                f"{text!r} names no resource: write / (the cluster), /namespace, /namespace/topic, "
                f"/namespace/topic/subscription or schema:subject, with * and ? in names if you like"
            )
        return cls(text)

    @property
    def has_wildcard(self) -> bool:
        return "*" in self.text or "?" in self.text

    @property
    def depth(self) -> int:
        """How many names a path has: 0 for the cluster, 3 for a subscription. Subjects have 1."""
        if self.text == CLUSTER or self.is_subject:
            return int(self.is_subject)
        return self.text.count("/")

    @property
    def is_subject(self) -> bool:
        return self.text.startswith(SUBJECT_PREFIX)

    def expression(self) -> str:
        """Return a regular expression that matches exactly the resources that the pattern covers."""
        if self.text == CLUSTER:
            return ".*"
        if self.is_subject:
            return _expression(self.text, _ANY_CHARACTER)
        return rf"(?!/\Z){_expression(self.text, '[^/]')}(?:/.*)?"  # the first name is not empty: / is the cluster

    def covers(self, other: ResourcePattern) -> bool:
        """Return whether this pattern covers everything that `other` covers. It may be False for two patterns that are
        the same written differently, such as `**` and `*`, and is never True wrongly."""
        if self.text == CLUSTER:
            return True
        if self.is_subject != other.is_subject or other.text == CLUSTER:
            return False
        literal = re.split(r"[*?]", self.text, maxsplit=1)[0]
        if not other.text.startswith(literal):
            return False
        if not self.has_wildcard:
            return other.text == self.text or (not self.is_subject and other.text.startswith(f"{self.text}/"))
        # The wildcards of `other` are compared as characters. A `?` here stands for one character, so not for a `*`.
        character = _ANY_CHARACTER if self.is_subject else "[^/]"
        expression = _expression(self.text, character, "[^*]" if self.is_subject else "[^/*]")
        return re.fullmatch(expression if self.is_subject else f"{expression}(?:/.*)?", other.text) is not None

    def topic_expression(self) -> str:
        """Return a regular expression that matches the topics of the subscriptions that the pattern covers."""
        assert self.depth == _COMPONENTS_MAX and not self.is_subject
        return _expression(self.text.rpartition("/")[0], "[^/]")

    def __str__(self) -> str:
        return self.text


def _expression(pattern: str, character: str, single: str = "") -> str:
    """Return a regular expression for a pattern, whose `*` and `?` stand for characters of the class `character`; `?`
    for one of the class `single`, if that is given.

    In a name, what is between two `*` is taken where it is first found, and never looked for again (an atomic group):
    another place could not match more. Otherwise some wildcards would take seconds for one long name.
    """
    names = pattern.split("/") if character != _ANY_CHARACTER else [pattern]
    return "/".join(_name_expression(one, character, single or character) for one in names)


def _name_expression(name: str, character: str, single: str) -> str:
    first, *others = [re.escape(one).replace(r"\?", single) for one in name.split("*")]
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>{character}*?{one})" for one in middle if one) + f"{character}*{last}"


def _is_pattern_word(word: str) -> bool:
    return len(word) <= NAME_CHARACTERS_MAX and _PATTERN_WORD.fullmatch(word) is not None


class Role(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named set of actions. `built_in` roles cannot be changed or deleted."""

    name: str
    actions: tuple[str, ...]
    built_in: bool = False
    version: str = ""
    """Changes with every change of the role: `expected` of `change_role` and `delete_role`. Built-in roles have
    none."""


class Binding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Gives roles to a subject, for the resources that a pattern covers."""

    id: str
    subject: BoundSubject
    roles: tuple[str, ...]
    resource: ResourcePattern


class ApiKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """An API key as it is listed: never its secret. Times are microseconds since 1970; `expires_at` 0: never."""

    id: str
    principal: BoundSubject
    groups: tuple[str, ...] = ()
    created_at: int = 0
    expires_at: int = 0
    comment: str = ""


class NewApiKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """An API key right after it was created: the only time its secret is shown."""

    key: ApiKey
    secret: str
    """What clients send: `dnb_<id>_<secret>`. It is told here only."""

    def __repr__(self) -> str:
        return f"NewApiKey(key={self.key!r})"


class CallerIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a caller is for the broker, how that was established, and which roles it has where."""

    principal: str
    """As rules and audit events name it, for example `user:alice`."""
    groups: tuple[str, ...] = ()
    method: str = "none"
    """`api-key`, `jwt`, `certificate`, `cluster-token`, or `none`."""
    expires_at: int = 0
    """When the credentials end, in microseconds since 1970; 0: never."""
    is_super_user: bool = msgspec.field(default=False, name="super_user")
    """Whether it may do everything, whatever the bindings say."""
    bindings: tuple[Binding, ...] = ()
    """The bindings of the principal and of its groups."""
    authentication: bool = True
    """Whether the broker has authentication. Without, everybody is anonymous and may do everything."""


class AccessAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a principal may do an action to a resource, and why."""

    allowed: bool
    principal: str
    action: str
    resource: str
    reason: str
    """One sentence for people: the binding and the role that allow it, or that none does."""
    binding: str = ""
    """The id of the binding that allows it; empty: none is needed, or none does."""
    role: str = ""
