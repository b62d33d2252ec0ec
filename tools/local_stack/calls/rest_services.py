"""What AWS asks about calls whose operation is their path: Lambda, Scheduler, open connections.

AWS: Service Authorization Reference, under the names of the services.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from tools.local_stack.calls.request import Question, Request, UnknownCallError, context

_CONNECTION: Final = re.compile(r"/(?:_aws/execute-api/(\w+)/)?(\w+)/@connections/(.+)")
_INVOKED: Final = re.compile(r"/2015-03-31/functions/([^/]+)/invocations")
_SCHEDULE: Final = re.compile(r"/schedules/([^/]+)")
_CONNECTION_OPERATIONS: Final = {
    "POST": "PostToConnection",
    "GET": "GetConnection",
    "DELETE": "DeleteConnection",
}
_SCHEDULE_OPERATIONS: Final = {
    "POST": "CreateSchedule",
    "PUT": "UpdateSchedule",
    "GET": "GetSchedule",
    "DELETE": "DeleteSchedule",
}
# What a schedule's role must be allowed, by the service that its target is of.
_TARGETS: Final = {
    "lambda": "lambda:InvokeFunction",
    "states": "states:StartExecution",
    "sqs": "sqs:SendMessage",
}


def rest_questions(request: Request) -> tuple[str, list[Question]]:
    """The operation and the questions about one call.

    Raises:
        UnknownCallError: a call that LakeSync does not make.
    """
    path = unquote(request.path)
    connection = _CONNECTION.fullmatch(path)
    if connection and request.service == "execute-api":
        named, stage, one = connection.groups()
        # On AWS the API is known by its host.
        api = named or request.headers.get("host", "").partition(".")[0]
        resource = request.arn(f"{api}/{stage}/{request.method}/@connections/{one}")
        operation = _CONNECTION_OPERATIONS[request.method]
        return operation, [Question("execute-api:ManageConnections", resource)]
    invoked = _INVOKED.fullmatch(path)
    if invoked and request.service == "lambda":
        resource = _function(request, invoked[1])
        return "Invoke", [Question("lambda:InvokeFunction", resource)]
    schedule = _SCHEDULE.fullmatch(path)
    if schedule and request.service == "scheduler":
        operation = _SCHEDULE_OPERATIONS[request.method]
        return operation, _about_schedule(request, operation, schedule[1])
    raise UnknownCallError(f"{request.service} {request.method} {path}")


def _function(request: Request, named: str) -> str:
    arn = named if named.startswith("arn:") else request.arn(f"function:{named}")
    version = request.query.get("Qualifier")
    return f"{arn}:{version}" if version else arn


def _about_schedule(request: Request, operation: str, name: str) -> list[Question]:
    group = request.document.get("GroupName") or request.query.get("groupName") or "default"
    asked = [Question(f"scheduler:{operation}", request.arn(f"schedule/{group}/{name}"))]
    target = request.document.get("Target")
    if target:
        role = target["RoleArn"]
        passed = context(iam__PassedToService="scheduler.amazonaws.com")
        asked.append(Question("iam:PassRole", role, passed))
        asked.append(schedule_question(target["Arn"], role))
    return asked


def schedule_question(target: str, role: str) -> Question:
    """What a schedule's role is asked whenever it fires.

    Raises:
        UnknownCallError: schedules of LakeSync have no such target.
    """
    service = target.split(":")[2]
    if service not in _TARGETS:
        raise UnknownCallError(f"scheduler {target}")
    return Question(_TARGETS[service], target, role=role.rpartition("/")[2])
