"""``functions/materialise``: how many runs are started, and what becomes of announcements."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from moto import mock_aws

from lakesync.materialise.work_queue import STARTING, LakeStore, Lease
from lakesync.runtime import materialise, wiring
from lakesync.runtime.materialise import CLAIMS_PER_RUN, materialise_handler
from tests.functions.conftest import Context, event, lake_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.functions.conftest import Functions

    Announced = Callable[..., Any]

SENT = event("materialise_announced")
BACK = {
    "batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in SENT["Records"]]
}
DONE: dict[str, list[Any]] = {"batchItemFailures": []}


class Runs:
    """Claims and runs, counted."""

    def __init__(self, claims: int, at_work: int = 0, room: int = 99) -> None:
        self.claims = claims
        self.busy = at_work
        self.room = room
        self.started = 0
        self.ages_s: dict[str, float] = {}
        self.others_start = False

    def alone(self) -> AbstractContextManager[bool]:
        return nullcontext(not self.others_start)

    def waiting(self, enough: int) -> int:
        return min(self.claims, enough)

    def oldest(self) -> dict[str, float]:
        return self.ages_s

    def at_work(self) -> int:
        return self.busy

    def start(self) -> bool:
        if self.started >= self.room:
            return False
        self.started += 1
        return True


@pytest.mark.parametrize(
    ("claims", "at_work", "started", "answer"),
    [
        (1, 0, 1, DONE),
        (CLAIMS_PER_RUN, 0, 1, DONE),
        (CLAIMS_PER_RUN + 1, 0, 2, DONE),
        (CLAIMS_PER_RUN + 1, 1, 1, DONE),
        (1, 1, 0, BACK),
        (99 * CLAIMS_PER_RUN, 0, 4, DONE),
        (99 * CLAIMS_PER_RUN, 3, 1, DONE),
        (99 * CLAIMS_PER_RUN, 4, 0, BACK),
        (0, 0, 0, DONE),
        (0, 1, 0, DONE),
    ],
)
def test_the_number_of_glue_runs_follows_the_number_of_waiting_claims(
    claims: int, at_work: int, started: int, answer: Any
) -> None:
    runs = Runs(claims, at_work)

    assert materialise_handler(runs, 4)(SENT, Context()) == answer
    assert runs.started == started


def test_announcements_are_retried_when_glue_starts_no_run() -> None:
    assert materialise_handler(Runs(5, room=0), 4)(SENT, Context()) == BACK


def test_announcements_are_done_once_one_of_several_runs_was_started() -> None:
    runs = Runs(3 * CLAIMS_PER_RUN, room=1)

    assert materialise_handler(runs, 4)(SENT, Context()) == DONE
    assert runs.started == 1


# --- how far the lake is behind

LAG = {"lag": True}


def metrics(printed: str) -> list[dict[str, Any]]:
    return [line for text in printed.splitlines() if "_aws" in (line := json.loads(text))]


@pytest.mark.parametrize("by_gateway", ["no", "yes"])
def test_the_lag_event_reports_the_age_of_the_oldest_batch_and_starts_no_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by_gateway: str
) -> None:
    monkeypatch.setenv("GATEWAY_METRICS", by_gateway)
    runs = Runs(claims=2)
    runs.ages_s = {"one": 60.0, "two": 7_300.5}

    assert materialise_handler(runs, 4)(LAG, Context()) == {"waiting": 2}
    written = metrics(capsys.readouterr().out)
    assert [line["LakeLag"] for line in written if "LakeLag" in line] == [[7_300.5]]
    gateways = {
        line["gateway"]: line["Lag"] for line in written if line.get("destination") == "lake"
    }
    assert gateways == ({"one": [60.0], "two": [7_300.5]} if by_gateway == "yes" else {})
    assert runs.started == 0


def test_a_lake_without_waiting_batches_writes_no_lag_metric(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert materialise_handler(Runs(claims=0), 4)(LAG, Context()) == {"waiting": 0}
    assert metrics(capsys.readouterr().out) == []


# --- by Glue and S3


class Glue:
    """Glue's runs, with room for some."""

    class exceptions:  # noqa: N801 - boto3's own name
        class ConcurrentRunsExceededException(Exception):
            """As many as there may be are at work."""

    def __init__(self, *states: str, room: int = 4) -> None:
        self.states = list(states)
        self.room = room
        self.started: list[str] = []

    def get_job_runs(self, *, JobName: str, MaxResults: int) -> dict[str, Any]:  # noqa: N803 - boto3's own names
        assert (JobName, MaxResults) == ("materialise", 100)
        return {"JobRuns": [{"JobRunState": state} for state in self.states]}

    def start_job_run(self, *, JobName: str) -> dict[str, str]:  # noqa: N803 - boto3's own name
        if len(self.started) >= self.room:
            raise self.exceptions.ConcurrentRunsExceededException
        self.started.append(JobName)
        return {"JobRunId": "jr_1"}


@pytest.fixture
def bucket(functions: Functions) -> Iterator[Any]:
    with mock_aws():
        yield lake_bucket()


@pytest.fixture
def announced(functions: Functions, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> Announced:
    """The function's answer to an announcement, with so many claims in the bucket."""
    real = wiring.client

    def handled(glue: Glue, claims: int = 1) -> Any:
        for number in range(claims):
            bucket.put_object(Bucket="lake", Key=f"claims/demo/todos/{number:04}.json", Body=b"{}")

        def client(settings: Any, service: str, **more: int) -> Any:
            return glue if service == "glue" else real(settings, service, **more)

        monkeypatch.setattr(wiring, "client", client)
        return functions.call("materialise", SENT)

    return handled


def test_many_announcements_start_one_run(announced: Announced) -> None:
    glue = Glue("SUCCEEDED", "TIMEOUT")

    assert announced(glue, claims=3) == DONE
    assert glue.started == ["materialise"]


@pytest.mark.parametrize("state", ["STARTING", "RUNNING", "STOPPING", "WAITING"])
def test_announcements_are_retried_while_enough_runs_are_active(
    announced: Announced, state: str
) -> None:
    glue = Glue("FAILED", state)

    assert announced(glue) == BACK
    assert glue.started == []


def test_announcements_are_retried_when_glue_refuses_a_run(announced: Announced) -> None:
    assert announced(Glue(room=0)) == BACK


def test_only_the_holder_of_the_starting_lease_starts_runs(
    bucket: Any, announced: Announced
) -> None:
    glue = Glue()

    with Lease.acquire_if_free(LakeStore(bucket, "lake"), STARTING, "other"):  # type: ignore[union-attr]
        assert announced(glue) == BACK
    assert glue.started == []
    assert announced(glue) == DONE
    assert glue.started == ["materialise"]


def test_announcements_without_claims_start_no_run(bucket: Any, announced: Announced) -> None:
    bucket.put_object(Bucket="lake", Key="staging/demo/todos/1.parquet", Body=b"")
    glue = Glue("RUNNING")

    assert announced(glue, claims=0) == DONE
    assert glue.started == []


def test_the_lag_of_each_gateway_is_the_age_of_its_oldest_claim(bucket: Any) -> None:
    for key in ("claims/one/todos/1.json", "claims/one/notes/2.json", "claims/two/todos/1.json"):
        bucket.put_object(Bucket="lake", Key=key, Body=b"{}")
    bucket.put_object(Bucket="lake", Key="claims-failed/three/todos/1.json", Body=b"{}")
    oldest = materialise.GlueRuns(Glue(), "materialise", bucket, "lake").oldest()

    assert oldest.keys() == {"one", "two"}
    assert all(age_s < 60 for age_s in oldest.values())


def test_another_run_is_started_beside_an_active_one_for_many_claims(announced: Announced) -> None:
    glue = Glue("RUNNING")

    assert announced(glue, CLAIMS_PER_RUN + 1) == DONE
    assert len(glue.started) == 1
