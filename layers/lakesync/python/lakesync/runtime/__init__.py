"""The composition root: makes Lambda functions of the engine.

`settings` reads the environment, `wiring` builds the objects of one cold start, `http` and `api`
turn requests into calls, `authoriser` and `auth` identify the caller, `observe` logs and counts.
Only this package depends on AWS, HTTP and the environment; the packages below do not.
"""

from typing import Final

DOORS: Final = (
    "api.admin",
    "api.open",
    "api.outlets",
    "api.pull",
    "api.submissions",
    "authoriser",
    "deliver",
    "http",
    "invocations",
    "materialise",
    "observe",
    "polls",
    "retention",
    "settings",
    "tasks",
    "websocket_frames",
    "websockets",
    "wiring",
    "wiring_connectors",
)
"""What other folders may import."""
