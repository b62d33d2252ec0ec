"""The work that waits for the lake: claims on S3, their chains, and the leases that share it out.

Batches of one table form a chain: each begins where the one before it ended. A table takes next the
longest chain from its mark, without a gap. A flush that was repeated over a longer range leaves
overlaps, ``(w, a]`` beside ``(w, b]``, and both contain the same deltas up to ``a``; the longer one
is taken.

Runs divide the work by groups of gateways, each with one lease. A gateway is always in the same
group, whatever runs there are, so two runs never work on one gateway's tables. A run takes a group
only when it has room for its tables, so that work is left for the others.

A lease is one object, written only by compare-and-swap. Its *epoch* grows with every new holder and
is written into every snapshot, so that a table itself shows a run that it was replaced. A run that
lost its lease no longer commits. Leases are not needed for correctness: marks and Iceberg's own
validation ensure that, without any clock. A lease keeps runs from doing the same work twice.
Law L8: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from zlib import crc32

from lakesync.core.deliveries import CLAIMS, CLAIMS_FAILED
from lakesync.errors import AdapterFailed, Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from mypy_boto3_s3 import S3Client

    from lakesync.core.clock import Stamp
    from lakesync.core.deliveries import Batch

# --- claims on S3 ---------------------------------------------------------------------------------


VERSIONS_REMOVED_MAX: Final = 1_000
"""Versions of one request: S3's limit."""
_MISSING: Final = frozenset({"NoSuchKey", "404"})
_LOST_RACE: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})


class StoredObject(NamedTuple):
    body: bytes
    etag: str


class ClaimEntry(NamedTuple):
    """A claim as a listing shows it."""

    key: str
    age_s: float
    """By the clock of S3, not of this machine."""


class LakeStore:
    """The bucket of claims, staged batches and the lease."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self.now = datetime.now(UTC)
        """The time by the clock of S3, from its last answer: all runs use one clock."""

    @property
    def root(self) -> str:
        """The URL of the bucket's objects for Spark."""
        return f"s3://{self._bucket}"

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def claims(self, only: str = "") -> Iterator[ClaimEntry]:
        """List waiting claims: all, or one table's as ``gateway/table``."""
        prefix = f"{CLAIMS}{only}/" if only else CLAIMS
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        for page in pages:
            self._heard(page)
            for entry in page.get("Contents", []):
                age = self.now - entry["LastModified"]
                yield ClaimEntry(entry["Key"], age.total_seconds())

    def etags(self, prefix: str) -> dict[str, str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", [])}

    def read(self, key: str) -> StoredObject | None:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
        except self._client.exceptions.ClientError as error:
            self._heard(error.response)
            if error.response["Error"]["Code"] in _MISSING:
                return None
            raise
        self._heard(answer)
        return StoredObject(answer["Body"].read(), answer["ETag"])

    def put_if_unchanged(self, key: str, body: bytes, etag: str | None) -> str | None:
        """Write an object if it still has that etag, or does not exist if None; give the new etag.

        Returns None if another writer was first.
        """
        condition: dict[str, Any] = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        try:
            answer = self._client.put_object(
                Bucket=self._bucket, Key=key, Body=body, ContentType="application/json", **condition
            )
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] in _LOST_RACE | _MISSING:
                return None
            raise
        self._heard(answer)
        return answer["ETag"]

    def delete(self, key: str) -> None:
        """Delete an object. Idempotent."""
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def old_versions(self, prefix: str) -> Iterator[dict[str, str]]:
        """Yield overwritten or deleted versions under a prefix; never a current one."""
        pages = self._client.get_paginator("list_object_versions").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        for page in pages:
            self._heard(page)
            for one in (*page.get("Versions", []), *page.get("DeleteMarkers", [])):
                if not one["IsLatest"]:
                    yield {"Key": one["Key"], "VersionId": one["VersionId"]}

    def remove_old_versions(self, prefix: str) -> int:
        """Remove them permanently; give their number. Idempotent, and safe to kill.

        Current objects stay, and so do the latest delete markers: the bucket's lifecycle removes
        them, and until then they keep hidden versions from reappearing.
        """
        return self._remove(list(self.old_versions(prefix)))

    def forget(self, key: str) -> None:
        """Remove an object permanently, with all its versions. Idempotent."""
        self.delete(key)
        self.remove_old_versions(key)

    def _remove(self, versions: list[dict[str, str]]) -> int:
        for at in range(0, len(versions), VERSIONS_REMOVED_MAX):
            some: Any = {"Objects": versions[at : at + VERSIONS_REMOVED_MAX], "Quiet": True}
            answer = self._client.delete_objects(Bucket=self._bucket, Delete=some)
            if errors := answer.get("Errors", []):
                raise AdapterFailed(f"S3 refused to delete a version: {errors[0].get('Code')}")
        return len(versions)

    def set_aside(self, claim_key: str, body: bytes, reason: str) -> None:
        """Move a claim that can never succeed aside, with its reason. Idempotent."""
        self._client.put_object(
            Bucket=self._bucket,
            Key=CLAIMS_FAILED + claim_key.removeprefix(CLAIMS),
            Body=body,
            ContentType="application/json",
            # A header: one line of plain characters.
            Metadata={
                "reason": reason.encode("ascii", "replace").decode().replace("\n", " ")[:500]
            },
        )
        self.delete(claim_key)

    def _heard(self, answer: Any) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        self.now = parsedate_to_datetime(date) if date else datetime.now(UTC)


# --- chains ---------------------------------------------------------------------------------------


FOLD_DELTAS_MAX: Final = 10_000_000
"""Deltas of one fold; the rest waits for the next fold of the same run."""


class Link(NamedTuple):
    """A batch, and the stamp from which its commits are taken."""

    batch: Batch
    above: Stamp


class Chain(NamedTuple):
    """What one step of a table does with the waiting batches."""

    links: tuple[Link, ...]
    """Batches to apply, in order; their ranges touch and do not overlap."""
    covered: tuple[Batch, ...]
    """Batches whose commits are all applied already, or will be after the links."""
    waiting: tuple[Batch, ...]
    """Batches behind a gap, or behind `FOLD_DELTAS_MAX`."""

    @property
    def last(self) -> Stamp:
        """The mark after the links are applied."""
        return self.links[-1].batch.last


def next_chain(
    batches: Iterable[Batch], applied: Stamp, *, deltas_max: int = FOLD_DELTAS_MAX
) -> Chain:
    links: list[Link] = []
    reached, deltas = applied, 0
    waiting = sorted(batches, key=lambda batch: batch.last)
    while following := _reaching_furthest(waiting, reached):
        deltas += following.deltas
        if links and deltas > deltas_max:
            break
        links.append(Link(following, reached))
        reached = following.last
    taken = {link.batch.claim_key for link in links}
    covered = tuple(
        batch for batch in waiting if batch.last <= reached and batch.claim_key not in taken
    )
    left = tuple(batch for batch in waiting if batch.last > reached)
    return Chain(tuple(links), covered, left)


def _reaching_furthest(batches: Sequence[Batch], reached: Stamp) -> Batch | None:
    fitting = [batch for batch in batches if batch.after <= reached < batch.last]
    return max(fitting, key=lambda batch: batch.last, default=None)


# --- groups of gateways ---------------------------------------------------------------------------


GATEWAY_GROUPS: Final = 64
"""Groups of gateways, by a hash of their ids: several for each of the possible runs."""
STARTING: Final = GATEWAY_GROUPS
"""The number behind the last group: its lease is held by who decides how many runs are started."""


def group_of(gateway: str) -> int:
    return crc32(gateway.encode()) % GATEWAY_GROUPS


def table_of(claim_key: str) -> str:
    return claim_key.removeprefix(CLAIMS).rpartition("/")[0]


def group_of_table(table: str) -> int:
    return group_of(table.partition("/")[0])


# --- leases ---------------------------------------------------------------------------------------


LEASE_S: Final = 45.0
"""How long a lease holds without a renewal, in seconds."""
RENEW_S: Final = 10.0
"""How often it is renewed: three renewals may fail before it is lost."""
_LOOK_S: Final = 2.0
"""How often a run that waits for a held lease checks it again."""


def lease_key(group: int) -> str:
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
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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


# --- why work is left to Spark --------------------------------------------------------------------


class LeftToSpark(Exception):
    """A function cannot, or should not, apply a batch; nothing of it was done."""


class MergeLeft(LeftToSpark):
    """The batch is in the changes table, where live views read it; only its merge remains."""
