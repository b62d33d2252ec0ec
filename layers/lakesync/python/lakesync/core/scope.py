"""A digest of the rules and claims that decide a client's rows, table by table, as text.

If a client hands back a scope other than the current one, it holds rows that it may no longer see,
or lacks rows that it may see. This concerns only the tables whose digests differ. Law V6:
``docs/spec/visibility.md``.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.core.names import is_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

EVERYTHING: Final = "*"
"""The digest of a table whose rows are all visible; the scope's text if that holds for all tables.
"""
NOTHING: Final = "-"
"""The digest of a table of which no row is visible."""
UNKNOWN: Final = "_"
"""The digest of a table of which the client holds only a part of what it may see: equal to none."""
OTHERS: Final = ""
"""Stands for all tables that a scope does not name."""
SCOPE_CHARS_MAX: Final = 4_096
"""Length of a scope's text; a longer one is replaced by one digest, which names no tables."""
_DIGEST_BYTES: Final = 9
_WHOLE: Final = "="


@dataclass(frozen=True, slots=True)
class Scope:
    """By table, the digest of what decides on its rows. Equal digests mean equally visible rows."""

    others: str = EVERYTHING
    tables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Tables whose digest differs from ``others``."""

    def of(self, table: str) -> str:
        """Return a table's digest, or that of `OTHERS`."""
        return self.tables.get(table, self.others)

    @property
    def is_listed(self) -> bool:
        """Return whether the text was short enough to list digests by table."""
        return not self.others.startswith(_WHOLE)

    def changed(self, other: Scope) -> list[str]:
        """Get the tables with another digest in another scope, in order; `OTHERS` is the last."""
        named = sorted({*self.tables, *other.tables})
        differing = [table for table in named if self.of(table) != other.of(table)]
        return differing if self.others == other.others else [*differing, OTHERS]

    def marked(self, table: str, digest: str) -> Scope:
        """Return the scope with a changed digest of one table, or of `OTHERS`."""
        if table == OTHERS:
            return replace(self, others=digest)
        return replace(self, tables=MappingProxyType({**self.tables, table: digest}))

    def forgotten(self) -> Scope:
        """Return the scope of a client that may hold anything of what rules decide about."""
        tables = {table: _forgotten(digest) for table, digest in self.tables.items()}
        return Scope(_forgotten(self.others), MappingProxyType(tables))

    def text(self) -> str:
        """Return the text that a client stores and hands: ``others~table.digest~…``."""
        digests = [f"{name}.{digest}" for name, digest in sorted(self.tables.items())]
        text = "~".join([self.others, *digests])
        return text if len(text) <= SCOPE_CHARS_MAX else _WHOLE + digest_of(text)


def _forgotten(digest: str) -> str:
    return digest if digest == EVERYTHING else UNKNOWN


def scope_of(text: str) -> Scope:
    """Read what `Scope.text` gave; anything else gives a scope that equals none."""
    others, *named = text.split("~")
    tables: dict[str, str] = {}
    for item in named:
        name, _, digest = item.partition(".")
        if not is_identifier(name) or not digest:
            return Scope(_WHOLE)
        tables[name] = digest
    return Scope(others, MappingProxyType(tables))


def digest_of(value: object) -> str:
    """Return a short digest of a JSON value: 72 bits, as a collision would benefit nobody."""
    text = json.dumps(value, separators=(",", ":")).encode()
    digest = hashlib.sha256(text).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(digest).decode()
