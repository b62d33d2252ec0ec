"""Pages out of a checkpoint's parts: what one client sees of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from lakesync.errors import CursorExpired, ValidationFailed
from lakesync.wire.row_records import row_runs

if TYPE_CHECKING:
    from lakesync.checkpoint.manifest import Manifest
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.config import GatewayConfig
    from lakesync.gateway.rule_filter import RuleFilter

_MARK = re.compile(r"=([0-9a-f]{16}-[0-9a-f]{16}):([0-9]{1,9}):([0-9]{1,9})")


class PartMark(NamedTuple):
    """Where in a checkpoint a snapshot goes on."""

    checkpoint: str
    part: int = 0
    """A part of the table, counted from 0."""
    skip: int = 0
    """Deltas of the part that were read already."""

    def to_text(self) -> str:
        """Give the place in a snapshot's position; no row's place looks like it."""
        return f"={self.checkpoint}:{self.part}:{self.skip}"


def part_mark_of(place: str) -> PartMark | None:
    """Read what `PartMark.to_text` gave; None for anything else."""
    found = _MARK.fullmatch(place)
    return PartMark(found[1], int(found[2]), int(found[3])) if found else None


class PartPage(NamedTuple):
    """What a client sees of a part."""

    records: tuple[bytes, ...]
    deltas: int
    skip: int
    """Where in the part the next page begins; 0 if it is read to its end."""


def decides(manifest: Manifest, config: GatewayConfig, rule_filter: RuleFilter) -> bool:
    """Tell whether the log behind a checkpoint says of each of its rows when it leaves rule_filter.

    Entries from before any rule looked at a column do not tell it; so a client that sees not
    everything would keep rows that left its rule_filter between the checkpoint and the rules.
    """
    return rule_filter.sees_everything or manifest.since >= config.logged.since


def read_part(
    checkpoints: Checkpoints,
    manifest: Manifest,
    table: str,
    mark: PartMark,
    rule_filter: RuleFilter,
    deltas_max: int,
) -> PartPage:
    """Give what a client sees of whole rows from a mark on, until a page is full.

    Raises:
        ValidationFailed: there is no such part.
        CursorExpired: the checkpoint is no longer kept.
    """
    held = manifest.tables.get(table)
    place = held.place(mark.part) if held else None
    if place is None or mark.skip >= place.part.deltas:
        raise ValidationFailed("the checkpoint has no such part", field="snapshot")
    run = checkpoints.part(manifest.gateway, manifest.id, place)
    if rule_filter.sees_everything and not mark.skip and place.part.deltas <= deltas_max:
        return PartPage((run,), place.part.deltas, 0)
    kept: list[bytes] = []
    count = at = 0
    for row in row_runs(run, rule_filter.columns(table)):
        if at >= mark.skip:
            if count >= deltas_max:
                return PartPage(tuple(kept), count, at)
            seen = rule_filter.row_run(table, row)
            kept += seen.runs
            count += seen.deltas
        at += row.deltas
    return PartPage(tuple(kept), count, 0)


def check_decides(manifest: Manifest, config: GatewayConfig, rule_filter: RuleFilter) -> None:
    """Refuse a checkpoint from before the rules in force; see `decides`.

    Raises:
        CursorExpired: it is one.
    """
    if not decides(manifest, config, rule_filter):
        raise CursorExpired(
            "your rules look at more than the checkpoint tells; begin again", field="scope"
        )
