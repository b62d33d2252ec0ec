"""What the Glue jobs install: stored when the stack is made or changed, and told to the jobs."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.runtime.materialise import JobPackagesSettings, job_packages_handler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class NoSuchBucketError(Exception):
    pass


class Bucket:
    """The three things that the function asks of S3."""

    class exceptions:  # noqa: N801 - boto3's own name
        NoSuchBucket = NoSuchBucketError

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refuses: Exception | None = None

    def put_object(self, Bucket: str, Key: str, Body: Any) -> None:  # noqa: N803
        if self.refuses:
            raise self.refuses
        self.objects[f"{Bucket}/{Key}"] = Body.read()

    def delete_object(self, Bucket: str, Key: str) -> None:  # noqa: N803
        if self.refuses:
            raise self.refuses
        self.objects.pop(f"{Bucket}/{Key}", None)


class CloudFormation:
    """Asks the function, and is answered at an address."""

    def __init__(self, folder: Path, url: str, answers: list[dict[str, Any]]) -> None:
        self.bucket = Bucket()
        self._answers = answers
        self._url = url
        self._folder = folder

    def ask(self, request: str, **more: Any) -> dict[str, Any]:
        asked = {
            "RequestType": request,
            "ResponseURL": self._url,
            "StackId": "arn:stack",
            "RequestId": "one",
            "LogicalResourceId": "JobPackages",
            "ResourceProperties": {"GlueVersion": "5.1"},
        }
        settings = JobPackagesSettings(region="us-east-1", lake_bucket="lake")
        handler = job_packages_handler(settings, self._folder, self.bucket)
        handler(asked | more, None)
        answer = self._answers.pop()
        for name in ("StackId", "RequestId", "LogicalResourceId"):
            assert answer.pop(name) == asked[name]
        return answer


@pytest.fixture
def cloudformation(tmp_path: Path) -> Iterator[CloudFormation]:
    answers: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            assert self.headers["Content-Type"] == "", "the address is signed for none"
            answers.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/answer"
        yield CloudFormation(tmp_path, url, answers)
        server.shutdown()
        thread.join()


@pytest.fixture
def zips(tmp_path: Path) -> Path:
    (tmp_path / "flow.gluewheels.zip").write_bytes(b"flow")
    (tmp_path / "checkpoint.gluewheels.zip").write_bytes(b"checkpoint")
    (tmp_path / "notes.txt").write_bytes(b"no package")
    (tmp_path / "glue-version").write_text("5.1")
    return tmp_path


def test_the_package_of_each_job_is_stored_and_its_url_returned(
    cloudformation: CloudFormation, zips: Path
) -> None:
    answer = cloudformation.ask("Create")

    place = answer["PhysicalResourceId"]
    assert answer["Status"] == "SUCCESS"
    assert answer["Data"] == {
        "checkpoint": f"s3://lake/{place}/checkpoint.gluewheels.zip",
        "flow": f"s3://lake/{place}/flow.gluewheels.zip",
    }
    assert cloudformation.bucket.objects == {
        f"lake/{place}/checkpoint.gluewheels.zip": b"checkpoint",
        f"lake/{place}/flow.gluewheels.zip": b"flow",
    }
    assert cloudformation.ask("Update", PhysicalResourceId=place) == answer, "safe to repeat"


def test_changed_packages_get_a_new_folder_and_the_old_folder_is_deletable(
    cloudformation: CloudFormation, zips: Path
) -> None:
    old = cloudformation.ask("Create")["PhysicalResourceId"]
    (zips / "flow.gluewheels.zip").write_bytes(b"newer")
    new = cloudformation.ask("Update", PhysicalResourceId=old)["PhysicalResourceId"]

    assert {key.split("/")[2] for key in cloudformation.bucket.objects} == {
        old.removeprefix("packages/"),
        new.removeprefix("packages/"),
    }
    assert cloudformation.ask("Delete", PhysicalResourceId=old)["Status"] == "SUCCESS"
    assert {key.split("/")[2] for key in cloudformation.bucket.objects} == {
        new.removeprefix("packages/")
    }


def test_deletion_succeeds_when_the_bucket_does_not_exist(
    cloudformation: CloudFormation, zips: Path
) -> None:
    place = cloudformation.ask("Create")["PhysicalResourceId"]
    cloudformation.bucket.refuses = NoSuchBucketError("gone")

    assert cloudformation.ask("Delete", PhysicalResourceId=place)["Status"] == "SUCCESS"


def test_deletion_of_packages_never_stored_sends_no_request(
    cloudformation: CloudFormation, zips: Path
) -> None:
    cloudformation.bucket.refuses = PermissionError("asked")

    assert cloudformation.ask("Delete", PhysicalResourceId="none")["Status"] == "SUCCESS"


@pytest.mark.parametrize("request_type", ["Create", "Update"])
def test_a_failure_is_reported_to_cloudformation_with_its_reason(
    cloudformation: CloudFormation, zips: Path, request_type: str
) -> None:
    cloudformation.bucket.refuses = PermissionError("AccessDenied " + "x" * 10_000)
    answer = cloudformation.ask(request_type)

    assert answer["Status"] == "FAILED"
    assert "AccessDenied" in answer["Reason"]
    assert len(json.dumps(answer)) < 4_096
    assert answer["PhysicalResourceId"]


def test_creation_without_built_packages_fails(cloudformation: CloudFormation) -> None:
    answer = cloudformation.ask("Create")

    assert answer["Status"] == "FAILED"
    assert "sam build" in answer["Reason"]


def test_packages_built_for_another_glue_version_are_refused(
    cloudformation: CloudFormation, zips: Path
) -> None:
    answer = cloudformation.ask("Update", ResourceProperties={"GlueVersion": "6.0"})

    assert answer["Status"] == "FAILED"
    assert "GlueVersion" in answer["Reason"]
    assert "sam build" in answer["Reason"]
    assert cloudformation.bucket.objects == {}
