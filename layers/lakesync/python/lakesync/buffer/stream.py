"""The changes of which connections are notified, from the stream of the buffer's table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.buffer.table_calls import number, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp


@dataclass(slots=True)
class Changes:
    """Commits, new configurations and revocations, by gateway."""

    commits: dict[str, Stamp] = field(default_factory=dict)
    """The last commit of each gateway that committed."""
    configs: set[str] = field(default_factory=set)
    """Gateways with a changed configuration."""
    revocations: list[tuple[str, str, str]] = field(default_factory=list)
    """Each gateway, kind and name."""


def changes_of(records: Iterable[Any]) -> Changes:
    """Read the records of a stream; those that do not concern connections are ignored."""
    changes = Changes()
    for record in records:
        change = record.get("dynamodb", {})
        key, image = change.get("Keys"), change.get("NewImage")
        if not key or not image:
            continue  # a removal is no change
        pk, sk = text(key, "pk"), text(key, "sk")
        parts = pk.split("|")
        if parts[:2] == ["", "revoked"]:
            kind, _, name = sk.partition("|")
            changes.revocations.append((parts[2], kind, name))
        elif parts[0] and parts[1:2] in (["head"], ["heads"]):
            commit = max(changes.commits.get(parts[0], 0), number(image, "l"))
            changes.commits[parts[0]] = commit
        elif parts[0] and parts[1:] == ["config"]:
            changes.configs.add(parts[0])
    return changes
