"""Administration of shares: finding their tables, declaring and removing them.

It uses the caller's own permissions: to read the tables, and the documents of shares in the bucket;
in Glue ``GetTable``, ``CreateTable``, ``UpdateTable`` and ``DeleteTable``, ``CreateDatabase``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.audited import listed
from lakesync.cli.catalogue import described, glue_views, open_catalogue
from lakesync.cli.faults import UsageFault
from lakesync.cli.lake import declared_columns
from lakesync.core.names import folded, lake_tables
from lakesync.errors import AdapterFailed
from lakesync.materialise.columns import LakeColumn
from lakesync.materialise.kept_shares import SharedViews, Shares
from lakesync.materialise.shape import (
    EVENTS_TABLE,
    GATEWAY,
    KIND,
    KINDS,
    STATE_TABLE,
    WRITTEN,
    delete_wins,
)
from lakesync.materialise.shared_views import size_fault
from lakesync.materialise.sharing import Member, Share, check_share, shared_database
from lakesync.materialise.storage import LakeStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.aws import Aws

LOOKS: Final = 8
"""Databases that are read concurrently."""
_SHARED: Final = (STATE_TABLE.name, EVENTS_TABLE.name)


def shares_of(aws: Aws) -> Shares:
    """Return the documents of the stack's shares."""
    return Shares(LakeStore(aws.client("s3"), aws.output("LakeBucket")))


def views_of_shares(aws: Aws, shares: Shares) -> SharedViews | None:
    """Return the views of shares in Glue's catalogue; None if the stack has another."""
    if not described(aws).is_glue:
        return None
    return SharedViews(glue_views(aws), shares, aws.output("DatabasePrefix"), aws.stack_id)


def declare(aws: Aws, name: str, table: str, gateways: str) -> Share:
    """Create or renew a share: its document, over all existing tables. Safe to repeat.

    Raises:
        UsageFault: another table is shared under the name.
        ValidationFailed: the tables cannot be shared; all faults are reported at once.
        Conflict: others keep changing it.
    """
    shares, wanted = shares_of(aws), Share(name, table, gateways)
    check_share(wanted)
    before = shares.read(name)
    if before is not None and folded(before.table) != folded(table):
        raise UsageFault(f"{name} is the table {before.table} already: choose another name by --as")
    members = dict(_members(aws, wanted, set()))
    _refuse_too_large(Share(name, table, gateways, members))
    gone = (before.members.keys() if before else set()) - members.keys()

    def declared(current: Share | None) -> Share:
        kept = {} if current is None else current.members
        # The spelling of columns is that of the first table, and stays.
        now = {one: kept[one] for one in kept if one not in gone} | members
        return Share(name, table, gateways, now)

    declared_now = shares.change(name, declared)
    # Tables that a run created meanwhile are not in the share yet.
    for gateway, member in _members(aws, wanted, set(members)):
        declared_now = shares.change(name, lambda s: s and s.with_member(gateway, member))  # noqa: B023 - called at once
    return declared_now or wanted


def keep_views(aws: Aws, shares: Shares, name: str) -> bool:
    """Update the views of a share to its document; return whether the catalogue has views.

    Raises:
        AdapterFailed: some views could not be updated.
    """
    views = views_of_shares(aws, shares)
    if views is None:
        return False
    if faults := views.keep(name):
        raise AdapterFailed("; ".join(f"{view}: {fault}" for view, fault in faults.items()))
    return True


def withdraw(aws: Aws, name: str) -> bool:
    """Remove a share and its views; return whether it existed. Safe to repeat."""
    shares = shares_of(aws)
    was = shares.read(name)
    shares.remove(name)
    if views := views_of_shares(aws, shares):
        views.drop(was or Share(name, name))
    return was is not None


def leave_shares(aws: Aws, gateway: str) -> None:
    """Remove a gateway from all shares, before its tables are dropped. Safe to repeat.

    Raises:
        AdapterFailed: a view could not be renewed.
    """
    shares = shares_of(aws)
    views = views_of_shares(aws, shares)
    for share in shares.all():
        if gateway not in share.members:
            continue
        left = shares.change(share.name, lambda s: s and s.without(gateway))
        if views is not None and left is not None and not left.members:
            views.drop(left)
        keep_views(aws, shares, share.name)


def share_states(aws: Aws) -> Iterator[dict[str, object]]:
    """Yield the report of each share."""
    shares = shares_of(aws)
    views = views_of_shares(aws, shares)
    for share in shares.all():
        wrong = {} if views is None else views.wrong(share)
        yield {
            "share": share.name,
            "database": shared_database(aws.output("DatabasePrefix")),
            "table": share.table,
            "gateways": share.gateways,
            "tables": len(share.members),
            "columns": len(share.columns()),
            "wrong": "; ".join(f"{view}: {why}" for view, why in wrong.items()),
        }


def share_shown(aws: Aws, name: str) -> dict[str, object]:
    """Return a share's tables, for an audit record."""
    share = shares_of(aws).read(name)
    if share is None:
        return {"shared": False}
    said = {"shared": True, "table": share.table, "gateways": share.gateways}
    return {**said, "members": listed(list(share.members))}


def _members(aws: Aws, share: Share, known: set[str]) -> Iterator[tuple[str, Member]]:
    """Yield the tables that belong to a share, by gateway, except those of known gateways."""
    catalogue, prefix = open_catalogue(aws), f"{aws.output('DatabasePrefix')}_"
    names = {one[-1] for one in catalogue.list_namespaces() if one[-1].startswith(prefix)}
    databases = sorted(names - {shared_database(aws.output("DatabasePrefix"))})

    def look(database: str) -> tuple[str, Member] | None:
        return _member(catalogue, database, share)

    with ThreadPoolExecutor(LOOKS) as looks:
        for one in looks.map(look, databases):
            if one is not None and one[0] not in known:
                yield one


def _member(catalogue: Any, database: str, share: Share) -> tuple[str, Member] | None:
    from pyiceberg.exceptions import NoSuchPropertyException, NoSuchTableError

    for name in dict.fromkeys(lake_tables(share.table)):
        try:
            table = catalogue.load_table((database, name))
        except (NoSuchTableError, NoSuchPropertyException):  # no table, or not one of Iceberg
            continue
        said = table.properties
        gateway, kind = said.get(GATEWAY, ""), said.get(KIND, "")
        if kind not in _SHARED or not share.wants(gateway, said.get(WRITTEN, name)):
            continue
        columns = [LakeColumn(n, t, w) for n, (t, w) in declared_columns(table).items()]
        wins = delete_wins(said)
        return gateway, Member(database, name, KINDS[kind].name, tuple(columns), delete_wins=wins)
    return None


def _refuse_too_large(share: Share) -> None:
    if fault := size_fault(share):
        raise UsageFault(fault.replace("by a pattern", "by --gateways"))
