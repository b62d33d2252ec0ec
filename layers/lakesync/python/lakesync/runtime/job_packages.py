"""The resource of the stack that puts what the Glue jobs install into the lake's bucket.

`sam deploy` uploads a job's script and nothing else of it, so the zips of wheels come as a layer,
and CloudFormation has this function copy them whenever the layer changes. Each content has a folder
of its own: a job that starts meanwhile installs the packages of its own release. Its name is the
resource's id, so CloudFormation asks for a replaced one to be removed once everything else is
updated, and after a rollback for the newer one. Protocol: CloudFormation User Guide, "Custom
resource request and response objects".
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lakesync.runtime import observe, wiring
from lakesync.runtime.settings import Aws, not_empty, variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.runtime.observe import Handler

FOLDER: Final = "lakesync_job_packages"
PREFIX: Final = "packages/"
SUFFIX: Final = ".gluewheels.zip"
VERSION: Final = "glue-version"
"""The file that says for which Glue the zips were built."""
UPLOAD_S_MAX: Final = 120
"""How long S3 may be silent while a zip is stored; the largest has 90 MB."""
ANSWER_S_MAX: Final = 10
"""How long CloudFormation may take to accept an answer."""
REASON_CHARS_MAX: Final = 1_000
"""CloudFormation takes 4,096 bytes of answer in all."""


@dataclass(frozen=True, kw_only=True)
class JobPackagesSettings(Aws):
    """The environment of ``functions/job_packages``."""

    lake_bucket: str = variable("LAKE_BUCKET", not_empty)


def packages_folder() -> Path | None:
    """Return where the layer with the zips is, which has them where Python looks for modules."""
    spec = importlib.util.find_spec(FOLDER)
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None


def job_packages_handler(
    settings: JobPackagesSettings, folder: Path | None, s3: Any = None
) -> Handler:
    """Return the handler of ``functions/job_packages``; every request is safe to repeat.

    Whatever goes wrong is answered as a failure with its reason: an exception would leave the
    deployment waiting until CloudFormation gives up.

    Args:
        settings: where the zips go.
        folder: where they are, if there are any.
        s3: a client; by default one of AWS's.
    """
    zips = sorted(folder.glob(f"*{SUFFIX}")) if folder else []

    def handler(event: dict[str, Any], _: Any) -> None:
        answer: dict[str, Any] = {"Status": "SUCCESS"}
        try:
            client = s3 or wiring.client(settings, "s3", answer_s_max=UPLOAD_S_MAX)
            if event["RequestType"] == "Delete":
                answer["PhysicalResourceId"] = event["PhysicalResourceId"]
                _remove(zips, client, settings.lake_bucket, event["PhysicalResourceId"])
            else:
                _check(folder, zips, event["ResourceProperties"]["GlueVersion"])
                place, data = _put(zips, client, settings.lake_bucket)
                answer |= {"PhysicalResourceId": place, "Data": data}
        except Exception as error:  # noqa: BLE001 - see above
            observe.bug(error, request=str(event.get("RequestType")))
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
            answer["Status"] = "FAILED"
            answer["Reason"] = f"the packages of the Glue jobs could not be stored: {reason}"
            # CloudFormation asks to delete what failed, and wants an id in every answer.
            answer.setdefault("PhysicalResourceId", event.get("PhysicalResourceId", "none"))
        _answer(event, answer)
        observe.publish()

    return handler


def _check(folder: Path | None, zips: list[Path], deployed: str) -> None:
    """Refuse a layer without packages, or with those of another Glue version."""
    if folder is None or not zips:
        raise FileNotFoundError("the layer has no packages: build it with `sam build`")
    built_for = (folder / VERSION).read_text().strip()
    if built_for != deployed:
        raise ValueError(
            f"they were built for Glue {built_for}, and the stack has Glue {deployed}: give "
            f"`--parameter-overrides GlueVersion=...` to both `sam build` and `sam deploy`"
        )


def _put(zips: list[Path], s3: Any, bucket: str) -> tuple[str, Mapping[str, str]]:
    """Store the zips; returns their folder, and each one's address by its job."""
    digest = hashlib.sha256()
    for path in zips:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    place = f"{PREFIX}{digest.hexdigest()[:16]}"
    data = {}
    for path in zips:
        key = f"{place}/{path.name}"
        with path.open("rb") as file:
            s3.put_object(Bucket=bucket, Key=key, Body=file)
        data[path.name.removesuffix(SUFFIX)] = f"s3://{bucket}/{key}"
    return place, data


def _remove(zips: list[Path], s3: Any, bucket: str, place: str) -> None:
    """Remove the zips of a folder; nothing if nothing was stored."""
    if not place.startswith(PREFIX):
        return
    for path in zips:
        try:
            s3.delete_object(Bucket=bucket, Key=f"{place}/{path.name}")
        except s3.exceptions.NoSuchBucket:
            return  # and nothing in it


def _answer(event: dict[str, Any], answer: dict[str, Any]) -> None:
    same = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    request = urllib.request.Request(  # noqa: S310 - CloudFormation's own address
        event["ResponseURL"],
        data=json.dumps(same | answer).encode(),
        method="PUT",
        # The address is signed for none.
        headers={"Content-Type": ""},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S_MAX):  # noqa: S310
        pass
