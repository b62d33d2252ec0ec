"""From a request to the questions that AWS asks about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.local_stack.calls.dynamodb import dynamodb_questions
from tools.local_stack.calls.json_services import json_questions
from tools.local_stack.calls.request import Question, Request, UnknownCallError
from tools.local_stack.calls.rest_services import rest_questions
from tools.local_stack.calls.s3 import s3_questions

if TYPE_CHECKING:
    from collections.abc import Iterable

_REST = frozenset({"execute-api", "lambda", "scheduler"})


def asked(request: Request, status: int) -> tuple[str, list[Question]]:
    """The operation that a request is, and what AWS asks the caller's policies about it.

    Args:
        request: What arrived.
        status: What it was answered with: S3 says that an object is missing only to callers who may
            list its bucket.

    Raises:
        UnknownCallError: LakeSync makes no such call, as far as is known here.
    """
    if request.service == "s3":
        return s3_questions(request, status)
    if request.service in _REST:
        return rest_questions(request)
    operation = request.operation
    if request.service == "dynamodb":
        return operation, _distinct(dynamodb_questions(request, operation))
    return operation, _distinct(json_questions(request, operation))


def _distinct(every: Iterable[Question]) -> list[Question]:
    return list(dict.fromkeys(every))


__all__ = ["Question", "Request", "UnknownCallError", "asked"]
