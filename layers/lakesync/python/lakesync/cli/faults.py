"""Turns errors into one sentence and an exit code: no traceback, and no secret.

Exit codes: 0 done · 1 refused or failed · 2 wrong usage · 3 temporary, try again · 4 no valid token
or credentials · 130 interrupted. One fault has one code, whichever command meets it:
``docs/operations.md`` lists them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Final

from lakesync.errors import AuthFailed, CursorExpired, Forbidden, LakeSyncError, Retry, Revoked

FAILED: Final = 1
USAGE: Final = 2
LATER: Final = 3
NO_ACCESS: Final = 4
INTERRUPTED: Final = 130

_CREDENTIALS: Final = (
    "AWS credentials are missing or void: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)
_UNREACHABLE: Final = (
    "AWS cannot be reached: check the network; a local stack is started by `make up`"
)
_VOID_CREDENTIALS: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_NO_CREDENTIALS: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"}
)
_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "403"})
_BUSY: Final = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_CAUSES_MAX: Final = 8
"""Causes of an error that are looked at."""


class UsageFault(Exception):
    """The command line is not valid or incomplete; the text says what to do."""


@dataclass(frozen=True)
class Fault:
    """How a failed command ends."""

    sentence: str
    code: str
    exit_code: int


def fault_of(error: BaseException) -> Fault:
    """Return how a command ends that raised ``error``."""
    if isinstance(error, UsageFault):
        return Fault(str(error), "USAGE", USAGE)
    if isinstance(error, KeyboardInterrupt):
        sentence = "interrupted; what was answered so far is done, the rest may be run again"
        return Fault(sentence, "INTERRUPTED", INTERRUPTED)
    if isinstance(error, LakeSyncError):
        return _of_access(error) or _of_lakesync(error)
    if type(error).__module__.startswith("botocore"):
        return _of_aws(error)
    if isinstance(error, ModuleNotFoundError) and _is_extra(error.name or ""):
        from lakesync.installing import how_to_install

        sentence = f"the command line needs {error.name}: run {how_to_install('cli')}"
        return Fault(sentence, "USAGE", USAGE)
    if isinstance(error, OSError) and "AWS Error " in str(error):
        return _of_arrow(str(error))
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return Fault(f"{name}{error.strerror or error}", "OS_ERROR", FAILED)
    return Fault(
        f"a bug in lakesync ({type(error).__name__}); set LAKESYNC_DEBUG=1 to see where, and "
        "report it",
        "INTERNAL_ERROR",
        FAILED,
    )


def _is_extra(module: str) -> bool:
    """Return whether a missing module belongs to another package."""
    return bool(module) and module.partition(".")[0] != "lakesync"


def is_bug_to_show(error: BaseException) -> bool:
    """Return whether the traceback is to be shown: a bug, with LAKESYNC_DEBUG set."""
    known = isinstance(
        error, LakeSyncError | UsageFault | OSError | KeyboardInterrupt | ModuleNotFoundError
    )
    return not known and bool(os.environ.get("LAKESYNC_DEBUG"))


def as_json(fault: Fault) -> str:
    """Return the fault as ``--json`` prints it, in the shape of the gateway's errors."""
    return json.dumps({"error": fault.sentence, "code": fault.code}, ensure_ascii=False)


def fault_line(fault: Fault, *, for_programs: bool) -> str:
    """Return the line that reports a fault: JSON for programs, a sentence for people."""
    return as_json(fault) if for_programs else f"error: {fault.sentence}"


def _of_access(error: LakeSyncError) -> Fault | None:
    """Return the fault of missing or void AWS credentials, where they caused an error of ours."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        cause = cause.__cause__ if cause else None
        code = _code_of(cause)
        if code in _VOID_CREDENTIALS:
            return Fault(_CREDENTIALS, code, NO_ACCESS)
        if code in _DENIED:
            return Fault(f"AWS does not allow it to these credentials: {error}", code, NO_ACCESS)
        if cause is not None and type(cause).__name__ in _NO_CREDENTIALS:
            return _of_aws(cause)
    return None


def _code_of(cause: BaseException | None) -> str:
    """Return what AWS calls a failure: in an error of botocore, or of our caller of DynamoDB."""
    response = getattr(cause, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(cause, "kind", ""))


def _of_arrow(text: str) -> Fault:
    """Decide what Arrow reports of S3 by its name for it: it carries no more than a sentence."""
    name = text.partition("AWS Error ")[2].partition(" ")[0]
    if name in {"ACCESS_DENIED", "FORBIDDEN"}:
        sentence = f"AWS does not allow it to these credentials: {text.splitlines()[0]}"
        return Fault(sentence, "AccessDenied", NO_ACCESS)
    if name in {"INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN"}:
        return Fault(_CREDENTIALS, name, NO_ACCESS)
    if name in {"NETWORK_CONNECTION", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE"}:
        return Fault(_UNREACHABLE, "UNREACHABLE", LATER)
    return Fault(f"AWS refused it: {text.splitlines()[0]}", "AWS_ERROR", FAILED)


def _of_lakesync(error: LakeSyncError) -> Fault:
    if isinstance(error, AuthFailed | Forbidden | Revoked):
        exit_code = NO_ACCESS
    elif error.retry is Retry.LATER:
        exit_code = LATER
    else:
        exit_code = FAILED
    field = f" ({error.field})" if error.field and error.field not in error.message else ""
    hint = "; pull again from 0: --since 0" if isinstance(error, CursorExpired) else ""
    return Fault(f"{error.message}{field}{hint}", error.code, exit_code)


def _of_aws(error: BaseException) -> Fault:
    """Decide by the name, not the class: importing botocore takes longer than most commands."""
    name = type(error).__name__
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        text = str(response.get("Error", {}).get("Message", "")).rstrip(".")
        operation = getattr(error, "operation_name", "a call")
        if code in _VOID_CREDENTIALS:
            return Fault(_CREDENTIALS, code, NO_ACCESS)
        if code in _DENIED:
            sentence = f"AWS does not allow {operation} to these credentials: {text}"
            return Fault(sentence, code, NO_ACCESS)
        exit_code = LATER if code in _BUSY else FAILED
        return Fault(f"AWS refused {operation}: {text or code}", code or "AWS_ERROR", exit_code)
    if name in _NO_CREDENTIALS:
        return Fault(_CREDENTIALS, "NO_CREDENTIALS", NO_ACCESS)
    if name == "ProfileNotFound":
        return Fault(f"{error}: set AWS_PROFILE to one that exists", "NO_CREDENTIALS", NO_ACCESS)
    if name == "NoRegionError":
        sentence = "no AWS region is set: set AWS_REGION, or name it in the stack file"
        return Fault(sentence, "NO_REGION", USAGE)
    if "Connect" in name or "Timeout" in name:
        return Fault(_UNREACHABLE, "UNREACHABLE", LATER)
    return Fault(f"the request to AWS failed: {error}", "AWS_ERROR", FAILED)
