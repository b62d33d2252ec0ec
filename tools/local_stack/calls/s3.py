"""What AWS asks about calls of S3.

AWS: S3 User Guide, "Required permissions for Amazon S3 API operations".
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from tools.local_stack.calls.request import Question, Request, UnknownCallError, context

# By method, whether an object is named, and the part of it that is asked for.
_OPERATIONS: Final = {
    ("GET", True, ""): ("GetObject", "GetObject"),
    ("HEAD", True, ""): ("HeadObject", "GetObject"),
    ("PUT", True, ""): ("PutObject", "PutObject"),
    ("DELETE", True, ""): ("DeleteObject", "DeleteObject"),
    ("POST", True, "uploads"): ("CreateMultipartUpload", "PutObject"),
    ("PUT", True, "uploadId"): ("UploadPart", "PutObject"),
    ("POST", True, "uploadId"): ("CompleteMultipartUpload", "PutObject"),
    ("DELETE", True, "uploadId"): ("AbortMultipartUpload", "AbortMultipartUpload"),
    ("GET", True, "uploadId"): ("ListParts", "ListMultipartUploadParts"),
    ("GET", False, ""): ("ListObjectsV2", "ListBucket"),
    ("HEAD", False, ""): ("HeadBucket", "ListBucket"),
    ("GET", False, "versions"): ("ListObjectVersions", "ListBucketVersions"),
    ("GET", False, "uploads"): ("ListMultipartUploads", "ListBucketMultipartUploads"),
    ("GET", False, "location"): ("GetBucketLocation", "GetBucketLocation"),
    ("POST", False, "delete"): ("DeleteObjects", "DeleteObject"),
}
_PARTS: Final = frozenset(part for _, _, part in _OPERATIONS if part)
# Parts that nothing here asks for: a request for one must not pass for the whole object.
_OTHERS: Final = frozenset({
    *("accelerate", "acl", "attributes", "cors", "encryption", "legal-hold", "lifecycle"),
    *("logging", "notification", "policy", "publicAccessBlock", "replication", "restore"),
    *("retention", "select", "tagging", "torrent", "versioning", "website"),
})  # fmt: skip
_READS: Final = frozenset({"GetObject", "HeadObject"})
# Headers that change what is asked, in a way that is not known here.
_HEADERS: Final = ("x-amz-tagging", "x-amz-acl", "x-amz-grant-read", "x-amz-object-lock-mode")


def s3_questions(request: Request, status: int) -> tuple[str, list[Question]]:
    """The operation and the questions about one call, whose bucket is the first part of its path.

    Raises:
        UnknownCallError: a call that LakeSync does not make.
    """
    bucket, _, key = request.path.lstrip("/").partition("/")
    parts = _PARTS.union(_OTHERS).intersection(request.query)
    part = "".join(sorted(parts))
    known = _OPERATIONS.get((request.method, bool(key), part))
    if not bucket or known is None or any(name in request.headers for name in _HEADERS):
        raise UnknownCallError(f"s3 {request.method} {part or request.path}")
    operation, action = known
    listed = f"arn:aws:s3:::{bucket}"
    if operation == "DeleteObjects":
        return operation, _each_deleted(request.body, listed)
    if not key:
        prefix = request.query.get("prefix") if "Versions" in action or part == "" else None
        return operation, [Question(f"s3:{action}", listed, context(s3__prefix=prefix))]
    if "versionId" in request.query and action in {"GetObject", "DeleteObject"}:
        action += "Version"
    asked = [Question(f"s3:{action}", f"{listed}/{key}")]
    source = request.headers.get("x-amz-copy-source")
    if source is not None:
        operation = "CopyObject" if operation == "PutObject" else "UploadPartCopy"
        asked.append(_of_source(source))
    if status == HTTPStatus.NOT_FOUND and operation in _READS:
        # AWS: GetObject, Permissions: without the right to list, a missing object is refused (403).
        asked.append(Question("s3:ListBucket", listed))
    return operation, asked


def _of_source(source: str) -> Question:
    path, _, version = unquote(source).lstrip("/").partition("?versionId=")
    return Question(f"s3:GetObject{'Version' if version else ''}", f"arn:aws:s3:::{path}")


def _each_deleted(body: bytes, bucket: str) -> list[Question]:
    asked = []
    for entry in ET.fromstring(body).iter():  # noqa: S314 - our own code sends it
        if entry.tag.rpartition("}")[2] == "Object":
            said = {child.tag.rpartition("}")[2]: child.text or "" for child in entry}
            version = "Version" if said.get("VersionId") else ""
            asked.append(Question(f"s3:DeleteObject{version}", f"{bucket}/{said['Key']}"))
    return asked
