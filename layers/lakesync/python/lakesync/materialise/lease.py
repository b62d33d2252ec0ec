"""Leases: one run at a time works on a group of gateways; one that lost it no longer commits there.

A lease is one object, written only by compare-and-swap. Its *epoch* grows with every new holder and
is written into every snapshot, so that a table itself shows a run that it was replaced.

Leases are not needed for correctness: marks and Iceberg's own validation ensure that, without any
clock. A lease keeps runs from doing the same work twice. Law L8: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from lakesync.errors import Conflict

if TYPE_CHECKING:
    from types import TracebackType

    from lakesync.materialise.storage import LakeStore, StoredObject

LEASE_S: Final = 45.0
"""How long a lease holds without a renewal, in seconds."""
RENEW_S: Final = 10.0
"""How often it is renewed: three renewals may fail before it is lost."""
_LOOK_S: Final = 2.0
"""How often a run that waits for a held lease checks it again."""


def lease_key(group: int) -> str:
    """Return the key of the lease of a group of gateways."""
    return f"leases/materialise/{group:02}.json"


class Lease:
    """A held lease: a context manager, renewed in the background and released at the end."""

    def __init__(self, store: LakeStore, group: int, run_id: str, epoch: int, etag: str) -> None:
        self.epoch = epoch
        self._store = store
        self._key = lease_key(group)
        self._run_id = run_id
        self._etag = etag
        self._lost = False
        self._write = threading.Lock()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    @classmethod
    def acquire(cls, store: LakeStore, group: int, run_id: str) -> Lease | None:
        """Take a group's lease as soon as it is free; give up once its holder shows signs of life.

        Returns None if another run is working. A killed run shows no signs of life, and its lease
        expires: after at most `LEASE_S` seconds the two cases are distinguished.
        """
        lease = first = store.read(lease_key(group))
        while lease is not None and _expires_at(lease) > store.now:
            if first is None or lease.etag != first.etag:
                return None
            store.pause(_LOOK_S)
            lease = store.read(lease_key(group))
        return cls._take(store, group, run_id, lease)

    @classmethod
    def acquire_if_free(cls, store: LakeStore, group: int, run_id: str) -> Lease | None:
        """Take a group's lease if it is free; never waits."""
        lease = store.read(lease_key(group))
        if lease is not None and _expires_at(lease) > store.now:
            return None
        return cls._take(store, group, run_id, lease)

    @classmethod
    def _take(
        cls, store: LakeStore, group: int, run_id: str, lease: StoredObject | None
    ) -> Lease | None:
        epoch = 1 if lease is None else int(json.loads(lease.body)["epoch"]) + 1
        body = _body(store, run_id, epoch, LEASE_S)
        etag = store.put_if_unchanged(lease_key(group), body, lease.etag if lease else None)
        return None if etag is None else cls(store, group, run_id, epoch, etag)

    def __enter__(self) -> Self:
        """Begin to renew."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lease: it expires at once, and its epoch stays on record."""
        self._released.set()
        self._thread.join()
        with self._write:
            self._put(0.0)

    def check(self) -> None:
        """Check that the lease is still held, by writing it; called before each commit.

        Raises:
            Conflict: another run has taken it.
        """
        with self._write:
            self._put(LEASE_S)
        if self._lost:
            raise Conflict(
                f"run {self._run_id} lost its lease of epoch {self.epoch} to another run, which"
                " takes what still waits"
            )

    def rise_above(self, written: int) -> None:
        """Check that the epoch in a table's snapshots is not a later holder's.

        If it is, the lease is lost. Otherwise the lease object itself was lost once, and began
        again at 1: its epoch then continues from the table's.

        Raises:
            Conflict: another run has taken the lease.
        """
        if written > self.epoch:
            self.check()
            with self._write:  # another table of the group may be rising too
                self.epoch = max(self.epoch, written + 1)
            self.check()

    def _keep(self) -> None:
        while not self._released.wait(RENEW_S):
            try:
                with self._write:
                    self._put(LEASE_S)
            except Exception as error:  # noqa: BLE001 - the next renewal, or `check`, will tell
                print(f"lease: renewal failed: {error}", flush=True)

    def _put(self, seconds: float) -> None:
        if self._lost:
            return
        body = _body(self._store, self._run_id, self.epoch, seconds)
        etag = self._store.put_if_unchanged(self._key, body, self._etag)
        if etag is None:
            self._lost = not self._is_ours()
        else:
            self._etag = etag

    def _is_ours(self) -> bool:
        """Return whether the object is ours after all: a successful write's answer was lost."""
        lease = self._store.read(self._key)
        if lease is None:
            return False
        body: dict[str, Any] = json.loads(lease.body)
        if (body["run_id"], body["epoch"]) != (self._run_id, self.epoch):
            return False
        self._etag = lease.etag
        return True


def _expires_at(lease: StoredObject) -> datetime:
    return datetime.fromisoformat(json.loads(lease.body)["expires_at"])


def _body(store: LakeStore, run_id: str, epoch: int, seconds: float) -> bytes:
    expires = store.now + timedelta(seconds=seconds)
    body = {"epoch": epoch, "run_id": run_id, "expires_at": expires.isoformat()}
    return json.dumps(body).encode()
