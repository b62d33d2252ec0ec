"""Keeps shares in step with new tables, and with their columns.

    1. the document names the table as it is now     one conditional write
    2. the catalogue's views are made to match       compared, and replaced where they differ
    3. the document is unchanged                     else 2 again

Concurrent runs, and declarations of shares, are ordered by 1. By 3, the last one in 2 has read the
latest document. If a run is killed in between, the next one compares and corrects. A fault of a
share never stops a batch.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from botocore.exceptions import BotoCoreError, ClientError

from lakesync.core.names import LIVE_SUFFIX, ROWS_SUFFIX
from lakesync.errors import Conflict, LakeSyncError
from lakesync.materialise.shared_views import as_viewed, shared_views, size_fault, without_live
from lakesync.materialise.sharing import (
    SHARES,
    Member,
    Share,
    share_key,
    share_name,
    share_of,
    shared_database,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.materialise.glue_views import GlueViews
    from lakesync.materialise.storage import LakeStore
    from lakesync.materialise.views import ViewedTable

TRIES_MAX: Final = 20
"""How often another writer may be first, before a change of a share is given up."""


class Shares:
    """The documents of a stack's shares."""

    def __init__(self, store: LakeStore) -> None:
        self._store = store
        self._known: dict[str, tuple[str, Share]] = {}

    def all(self) -> list[Share]:
        """Return all of them, by name: one listing, and those that changed since the last."""
        etags = self._store.etags(SHARES)
        shares = []
        for key in sorted(etags):
            known = self._known.get(key)
            share = known[1] if known and known[0] == etags[key] else self.read(share_name(key))
            if share is not None:
                shares.append(share)
        return shares

    def read(self, name: str) -> Share | None:
        """Return a share; None if there is none."""
        return self._read(name)[0]

    def change(self, name: str, to: Callable[[Share | None], Share | None]) -> Share | None:
        """Change a share's document, even under concurrent changes; give the new one.

        Args:
            name: its name.
            to: gives the new document from the present one; called again if another writer was
                first.

        Raises:
            Conflict: another writer was first too often.
        """
        for _ in range(TRIES_MAX):
            share, etag = self._read(name)
            wanted = to(share)
            if wanted is None or wanted == share:
                return wanted
            if self._store.put_if_unchanged(share_key(name), wanted.as_json(), etag) is not None:
                return wanted
        raise Conflict(f"the share {name} is being changed by others; try again")

    def remove(self, name: str) -> None:
        """Remove a share. Idempotent."""
        self._store.delete(share_key(name))

    def _read(self, name: str) -> tuple[Share | None, str | None]:
        key = share_key(name)
        stored = self._store.read(key)
        if stored is None:
            self._known.pop(key, None)
            return None, None
        share = share_of(key, stored.body)
        self._known[key] = stored.etag, share
        return share, stored.etag


class SharedViews:
    """The views of shares in the Glue Data Catalog."""

    def __init__(self, glue: GlueViews, shares: Shares, prefix: str, stack: str) -> None:
        """Prepare the work.

        Args:
            glue: where views are kept.
            shares: the documents.
            prefix: of the stack's databases.
            stack: whose views they are.
        """
        self._glue = glue
        self._shares = shares
        self._database = shared_database(prefix)
        self._stack = stack

    def keep(self, name: str) -> Mapping[str, str]:
        """Make a share's views match its document. Idempotent, and safe in parallel.

        Returns:
            By view, why it is not as it should be.
        """
        for _ in range(TRIES_MAX):
            share = self._shares.read(name)
            if share is None or not share.members:
                return {}
            faults = self._keep(share)
            if self._shares.read(name) == share:
                return faults
        return {name: "its tables change all the time"}

    def wrong(self, share: Share) -> Mapping[str, str]:
        """Return by view what `keep` would change."""
        if fault := size_fault(share):
            return {share.name: fault}
        viewed = as_viewed(share, self._database, self._stack)
        return self._glue.these_wrong(viewed, shared_views(share, "athena"))

    def drop(self, share: Share) -> None:
        """Remove the views of a share, except those that somebody else made. Idempotent."""
        self._glue.drop_these(
            as_viewed(share, self._database, self._stack),
            [share.name + suffix for suffix in ("", ROWS_SUFFIX, LIVE_SUFFIX)],
        )

    def _keep(self, share: Share) -> Mapping[str, str]:
        if fault := size_fault(share):
            return {share.name: fault}
        viewed = as_viewed(share, self._database, self._stack)
        views = {view.name: view for view in shared_views(share, "athena")}
        faults: dict[str, str] = {}
        if wide := without_live(share):
            del views[share.name + LIVE_SUFFIX]
            faults[share.name + LIVE_SUFFIX] = f"the table of {wide[0]} is too wide for one"
        self._glue.make_database(self._database, "LakeSync: tables that are shared by gateways")
        return faults | dict(self._glue.keep_these(viewed, views.values()))


class KeptViews:
    """The views of tables, and of the shares to which they belong: `ViewCatalogue` of a run."""

    def __init__(self, glue: GlueViews | None, shares: Shares, prefix: str, stack: str) -> None:
        """Prepare the work; without views in the catalogue only the documents are kept."""
        self._glue = glue
        self._shares = shares
        self._views = None if glue is None else SharedViews(glue, shares, prefix, stack)
        self._place = shared_database(prefix)
        self._kept: dict[str, Share] = {}
        self._one = Lock()

    def keep(self, table: ViewedTable) -> Mapping[str, str]:
        """Keep the views of a table, and of the shares that it belongs to."""
        faults = {} if self._glue is None else dict(self._glue.keep(table))
        try:
            with self._one:  # tables of a share are processed in parallel
                for share in self._shares.all():
                    if share.wants(table.gateway, table.written):
                        faults |= self._keep_share(share, table.gateway, member_of(table))
        except (BotoCoreError, ClientError, LakeSyncError, LookupError, ValueError) as error:
            faults["shares"] = f"{type(error).__name__}: {error}"
        return faults

    def _keep_share(self, share: Share, gateway: str, member: Member) -> Mapping[str, str]:
        def joined(current: Share | None) -> Share | None:
            if current is None or current.members.get(gateway) == member:
                return current
            return current.with_member(gateway, member)

        now = self._shares.change(share.name, joined)
        if now is None or self._views is None or self._kept.get(share.name) == now:
            return {}
        self._kept[share.name] = now  # a fault is reported once in a run, and again by the next run
        faults = self._views.keep(share.name)
        return {f"{self._place}.{view}": fault for view, fault in faults.items()}


def member_of(table: ViewedTable) -> Member:
    """Return a table in the form that a share stores."""
    return Member(
        table.database, table.name, table.kind.name, table.columns, delete_wins=table.delete_wins
    )
