"""The record of calls: what each function and job asks of AWS, once for each distinct question.

Each has an access key of its own, of a session of its role. `<folder>/calls.jsonl` has a line for
each question of AWS about a call that was signed with one; calls of the developer are not in it.
"""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tools.local_stack.calls.questions import Question, Request, asked
from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RECORD = "calls.jsonl"
_SIGNED_AS = {"apigateway": "execute-api", "awslambda": "lambda", "cloudwatch": "monitoring"}


class Record:
    """A file of distinct questions."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Read by tests while the emulator runs: a line is whole as soon as it is written.
        self._file = path.open("w", buffering=1)
        self._written: set[tuple[str, str, Question | None]] = set()

    def add(self, key: str, caller: str, request: Request, status: int) -> None:
        """Write down what is asked about a request that was answered, unless it was already."""
        try:
            operation, every = asked(request, status)
        except Exception as error:  # noqa: BLE001 - what cannot be read must not be left out
            self._write(key, caller, request.service, f"unknown: {error!r}", None)
            return
        if not every:
            self._write(key, caller, request.service, operation, None)
        for question in every:
            self._write(key, caller, request.service, operation, question)

    def close(self) -> None:
        """Write down no more."""
        self._file.close()

    def _write(
        self, key: str, caller: str, service: str, operation: str, question: Question | None
    ) -> None:
        entry = (key, f"{service}:{operation}", question)
        if entry in self._written:
            return
        self._written.add(entry)
        line: dict[str, Any] = {"key": key, "caller": caller, "operation": entry[1]}
        if question is not None:
            line |= question._asdict() | {"context": dict(question.context)}
        self._file.write(json.dumps(line) + "\n")


def record_calls(folder: Path) -> None:
    """AWS: CloudTrail knows who called what; the emulator remembers nothing."""
    app = emulator_module("ministack.app")
    record = Record(folder / RECORD)
    for name in ("_handle_special_data_plane_request", "_dispatch_service_request"):
        setattr(app, name, _recorded(getattr(app, name), record))


def _recorded(original: Any, record: Record) -> Any:
    async def handle(
        method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, list[str]],
        *rest: Any, **named: Any,
    ) -> Any:  # fmt: skip
        answer = await original(method, path, headers, body, query, *rest, **named)
        # None leaves the request to the next handler.
        if answer is not None:
            key = emulator_module("ministack.core.router").extract_access_key_id(headers, query)
            session = emulator_module("ministack.services.sts")._sessions.get(key) if key else None
            if session is not None:
                request = _request(method, path, headers, body, query)
                record.add(key, session["Arn"].rpartition(":")[2], request, answer[0])
        return answer

    return handle


def _request(
    method: str, path: str, headers: Mapping[str, str], body: bytes, query: dict[str, list[str]]
) -> Request:
    flat = {name: values[0] if values else "" for name, values in query.items()}
    signed = headers.get("authorization") or flat.get("X-Amz-Credential", "")
    # The key, the date, the region, the service, and a constant.
    scope = signed.partition("Credential=")[2].partition(",")[0] or signed
    _, _, region, service, *_ = scope.split("/")
    return Request(
        service=_SIGNED_AS.get(service, service),
        method=method,
        path=path,
        query=flat,
        headers=headers,
        body=body,
        region=region,
        account=emulator_module("ministack.core.responses").get_account_id(),
        parse=emulator_module("ministack.core.iam_actions").json.loads,
    )
