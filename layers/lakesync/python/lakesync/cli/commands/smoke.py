"""`lakesync smoke`: does the main job once on a scratch gateway, and cleans up."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from uuid import uuid4

import typer

from lakesync.cli.faults import FAILED, fault_of
from lakesync.cli.session import OWN_TOKEN_S, Session, command
from lakesync.cli.smoke import SCRATCH, Failed, Job, Scratch
from lakesync.errors import LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable

_USER: Final = "smoke"
_CLEAN: Final = "clean up"


@command
def smoke(
    session: Session,
    *,
    lake: Annotated[
        bool, typer.Option("--lake", help="Also wait until the lake holds the rows.")
    ] = False,
    timeout: Annotated[int, typer.Option(help="Seconds to wait for the lake.", min=1)] = 300,
    scratch: Annotated[str, typer.Option(help="The gateway to do it on.")] = SCRATCH,
) -> None:
    """Do the main job once on a scratch gateway: rules, push, pull, a merge, a flush; clean up.

    What was set as --gateway is not touched. The rows are deleted again; what stays is told: the
    scratch gateway itself, which is the same every time. The flush starts a Glue run. A token that
    is set must be an administrator's, for the scratch gateway.

    Ends with 0 if every step did what it must, else with 1 and the step that did not.

    Example:
      lakesync smoke --stack lakesync --lake
    """
    place = session.place
    url = place.url or session.aws.output("HttpUrl")
    way = Scratch(url, scratch, _token(session, scratch), _user(session))
    failed: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="lakesync-smoke-") as folder,
        Job(way, uuid4().hex[:12], Path(folder)) as job,
    ):
        steps: list[tuple[str, Callable[[], str]]] = [
            ("rules", job.rules),
            ("push", job.push),
            ("pull", job.pull),
            ("edit", job.edit),
            ("flush", job.flush),
        ]
        if lake:
            steps.append(("lake", lambda: job.lake(session.aws, timeout)))
        for name, step in steps:
            if not _done(session, name, step):
                failed.append(name)
                break
        left: list[str] = []
        if not _done(session, _CLEAN, lambda: _removed(job, left)):
            failed.append(_CLEAN)
        for what in left:
            session.out.note(f"stays: {what}")
    if failed:
        raise typer.Exit(FAILED)


def _removed(job: Job, left: list[str]) -> str:
    left += job.remove()
    return "the rows are deleted"


def _done(session: Session, name: str, step: Callable[[], str]) -> bool:
    """Do a step and tell how it went; what it may raise is its answer, not the command's end."""
    began = time.monotonic()
    try:
        with session.out.progress(f"{name} …"):
            what, well = step(), True
    except Failed as exc:
        what, well = str(exc), False
    except LakeSyncError as exc:
        what, well = fault_of(exc).sentence, False
    took_ms = round((time.monotonic() - began) * 1000)
    session.out.answer(
        {"step": name, "well": well, "what": what, "ms": took_ms},
        f"{'well' if well else 'FAILED':<7}{name}: {what} ({took_ms:,} ms)",
    )
    return well


def _user(session: Session) -> str:
    from lakesync.cli.tokens import subject

    return (subject(session.place.token) if session.place.token else None) or _USER


def _token(session: Session, scratch: str) -> Callable[[str, str], str]:
    """Give what signs a token for the scratch gateway, or repeats the one that was set."""
    from lakesync.cli.tokens import sign

    given = session.place.token
    secret = "" if given else session.aws.jwt_secret()

    def token(user: str, role: str) -> str:
        claims = {"sub": user, "gw": scratch, "role": role}
        return given or sign(claims, OWN_TOKEN_S, secret, int(time.time()))

    return token
