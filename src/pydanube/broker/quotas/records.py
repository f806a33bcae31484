"""The keys and values of quotas in the metadata store. Values are MessagePack maps, as in broker.registry.

```
/security/quotas/<type>:<name>       QuotaRecord      type: user, service_account or namespace
```
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import msgspec

from pydanube.metadata.packing import version_of
from pydanube.model.quotas import LIMIT_NAMES, Quota, QuotaLimits, QuotaSubject, QuotaUsage

QUOTAS: Final = "/security/quotas/"


class QuotaRecord(msgspec.Struct, omit_defaults=True):
    """The limits of one subject; 0 is none."""

    connections_max: int = 0
    requests_per_s: int = 0
    publish_bytes_per_s: int = 0
    fetch_bytes_per_s: int = 0
    stored_bytes_max: int = 0
    created_at: int = 0

    def limits(self) -> QuotaLimits:
        return QuotaLimits(**{name: getattr(self, name) for name in LIMIT_NAMES})

    def quota(self, subject: QuotaSubject, used: QuotaUsage) -> Quota:
        return Quota(subject, **asdict(self.limits()), version=version_of(self), used=used)


def quota_key(subject: QuotaSubject) -> str:
    """Return the key of a quota. A name may contain `/`: nothing is below a quota."""
    return f"{QUOTAS}{subject.type}:{subject.name}"


def subject_of_key(key: str) -> QuotaSubject:
    kind, _, name = key.removeprefix(QUOTAS).partition(":")
    return QuotaSubject(kind, name)
