"""A release that meets what only a later one can read: it says so, and changes nothing."""

from __future__ import annotations

import copy
import json
from base64 import b64decode
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer import item_format
from lakesync.checkpoint.store import Manifest, manifest_from_json, manifest_to_json
from lakesync.core import config
from lakesync.core.deliveries import parse_claim
from lakesync.core.messages import Pull
from lakesync.errors import Retry, UpgradeRequired
from lakesync.maintenance.checkpoint_upkeep import Progress, progress_from_json, progress_to_json
from lakesync.wire.log_entries import inflate
from tests.releases.test_side_by_side import Deployment
from tests.support.builders import at_ms, insert, push
from tests.support.releases import GATEWAY, Release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def a_later_release() -> Iterator[None]:
    """What is declared meanwhile is declared by a release that raised the format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "READS", config.READS + 1)
        patch.setattr(config, "WRITES", config.READS)
        yield


@pytest.fixture
def deployment() -> Deployment:
    """A gateway with data, whose configuration a later release has just changed."""
    deployment = Deployment(0)
    deployment.old.declare(1)
    for _ in range(5):
        deployment.push(deployment.old)
    deployment.old.pulls.pull(GATEWAY, Pull("ann"))
    with a_later_release():
        fresh = Release(deployment.model, deployment.objects, deployment.queue, deployment.time, 7)
        fresh.declare(2)
        deployment.push(fresh)
    return deployment


ACTIONS: dict[str, Callable[[Release], object]] = {
    "push": lambda release: release.pushes.push(GATEWAY, push(insert("new", at=at_ms(100), n=1))),
    "pull": lambda release: release.pulls.pull(GATEWAY, Pull("ann")),
    "declare": lambda release: release.declare(3),
    "flush": lambda release: release.flusher.flush(GATEWAY),
    "build": lambda release: release.builder.build(GATEWAY),
    "trim": lambda release: release.trimmer.trim(GATEWAY),
}


@pytest.mark.law("B14")
@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("action", ACTIONS)
def test_release_that_cannot_read_the_configuration_changes_nothing(
    deployment: Deployment, action: str, *, is_warm: bool
) -> None:
    warm, world = deployment.old, (deployment.model, deployment.objects, deployment.queue)
    release = warm if is_warm else Release(*world, deployment.time, 8)
    before = copy.deepcopy(vars(deployment.model.dynamo.items))
    objects = dict(deployment.objects.bodies)

    with pytest.raises(UpgradeRequired, match="the configuration was written by a later release"):
        ACTIONS[action](release)

    assert vars(deployment.model.dynamo.items) == before
    assert deployment.objects.bodies == objects


@pytest.mark.law("B14")
def test_newer_format_of_a_configuration_is_kept_by_a_release_that_reads_it(
    deployment: Deployment,
) -> None:
    later = config.READS + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "READS", later)
        Release(deployment.model, deployment.objects, deployment.queue, deployment.time, 9).declare(
            4
        )
    item = deployment.item(item_format.config_pk(GATEWAY), item_format.CONFIG)

    document = json.loads(inflate(b64decode(item["d"]["B"])))
    assert document["format"] == later
    with pytest.raises(UpgradeRequired):
        item_format.unpack_config(b64decode(item["d"]["B"]))


def test_readable_format_is_at_most_one_ahead_of_the_written_one() -> None:
    assert config.WRITES <= config.READS <= config.WRITES + 1


MANIFEST = manifest_to_json(Manifest("0" * 16 + "-" + "0" * 16, GATEWAY, "e", 5, {}))
PROGRESS = progress_to_json(Progress("0" * 16 + "-" + "0" * 16, "e", ("todos",)))
CLAIM = json.dumps(
    {
        "version": 1, "gateway": "g", "table": "t", "after": "0", "last": "9", "object": "o",
        "deltas": 1, "append": False, "schema": None, "columns": {"n": "n"},
    }
).encode()  # fmt: skip


@pytest.mark.law("B14")
@pytest.mark.parametrize(
    ("read", "document"),
    [
        (manifest_from_json, MANIFEST),
        (progress_from_json, PROGRESS),
        (lambda body: parse_claim("claims/k.json", body), CLAIM),
    ],
)
def test_document_of_a_later_format_on_s3_raises_upgrade_required(
    read: Callable[[bytes], object], document: bytes
) -> None:
    later = json.loads(document) | {"added": {"deep": [1]}}
    assert read(json.dumps(later).encode()) == read(document)

    later["version"] = config.READS + 1
    with pytest.raises(UpgradeRequired, match="was written by a later release"):
        read(json.dumps(later).encode())


def test_upgrade_required_asks_the_client_to_retry_later() -> None:
    error = UpgradeRequired("the configuration was written by a later release")

    assert (error.status, error.retry) == (503, Retry.LATER)
    assert error.retry_after_s > 0
    assert "tell the operator" in error.public_message
