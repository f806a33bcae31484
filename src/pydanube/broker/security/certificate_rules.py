"""Rules that tell which principal a client certificate stands for.

```
 SAN URI:spiffe://example/(.*) => service_account:{1}
 SAN DNS:(broker-[0-9]+)\\.example => broker:{1}
 subject CN=([^,]+),O=Example => user:{1}
```

A rule has a place (`subject`, or `SAN` for any of the alternative names), a regular expression that must match the
whole text, and a principal in which `{1}` to `{9}` stand for its groups. The first rule that matches counts. The text
of a subject is as RFC 4514 writes it; that of a name begins with its kind: `DNS:`, `URI:`, `email:` or `IP:`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from pydanube.core.access import Principal
from pydanube.core.identity import Identity, PeerCertificate
from pydanube.model.errors import Invalid
from pydanube.model.security import BROKER_TYPE, SERVICE_ACCOUNT, USER, parse_principal_name

METHOD: Final = "certificate"

_SUBJECT: Final = "subject"
_NAMES: Final = "SAN"
_TYPES: Final = (USER, SERVICE_ACCOUNT, BROKER_TYPE)
_ARROW: Final = "=>"
_GROUP: Final = re.compile(r"\{([1-9])\}")
_TEXT_CHARACTERS_MAX: Final = 1_000
"""A longer name is not compared, because regular expressions may take long for it: its certificate stands for nobody
where a rule would have to compare it."""


@dataclass(frozen=True, slots=True)
class CertificateRule:
    """One rule. Holding one means that it can be used."""

    place: str
    pattern: re.Pattern[str]
    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `PLACE PATTERN => TYPE:NAME`. Raises Invalid, with what is wrong."""
        left, arrow, right = text.partition(_ARROW)
        place, _, pattern = left.strip().partition(" ")
        kind, colon, name = right.strip().partition(":")
        if not (arrow and colon and pattern.strip() and name) or place not in (_SUBJECT, _NAMES) or kind not in _TYPES:
            raise Invalid(
                f"{text!r} is no rule for certificates: write, for example, "
                f"'SAN URI:spiffe://example/(.*) => service_account:{{1}}' or 'subject CN=([^,]+) => user:{{1}}'"
            )
        try:
            compiled = re.compile(pattern.strip())
        except re.error as error:
            raise Invalid(f"{text!r}: its regular expression is wrong: {error}") from None
        if any(int(one) > compiled.groups for one in _GROUP.findall(name)):
            raise Invalid(f"{text!r}: its regular expression has only {compiled.groups} groups")
        return cls(place, compiled, kind, name)

    def matched_name(self, certificate: PeerCertificate) -> str | None:
        """Return the name of whom the certificate stands for by this rule, which may be no name that a principal can
        have; None: the rule does not match."""
        for text in (certificate.subject,) if self.place == _SUBJECT else certificate.names:
            if len(text) > _TEXT_CHARACTERS_MAX:
                return ""
            matched = self.pattern.fullmatch(text)
            if matched is not None:
                return _GROUP.sub(lambda one, of=matched: of[int(one[1])] or "", self.name)  # type: ignore[misc]
        return None


def find_identity(certificate: PeerCertificate, rules: Sequence[CertificateRule], now_us: int) -> Identity | None:
    """Return who shows this certificate; None if it has expired, or no rule matches, or the first that does makes
    something of it that is no name: the rules after it do not count."""
    if 0 < certificate.expires_at_us <= now_us:
        return None
    for rule in rules:
        name = rule.matched_name(certificate)
        if name is None:
            continue
        try:
            principal = Principal(parse_principal_name(name), rule.type)
        except Invalid:
            return None
        return Identity(principal, METHOD, certificate.expires_at_us)
    return None
