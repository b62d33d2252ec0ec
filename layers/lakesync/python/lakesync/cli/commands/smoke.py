"""`lakesync smoke`: run an end-to-end check on a scratch gateway, and clean up."""

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
    from collections.abc import Callable, Iterator

_USER: Final = "smoke"
_CLEAN: Final = "clean up"
_LAKE: Final = "clean up the lake"


@command
def smoke(
    session: Session,
    *,
    lake: Annotated[
        bool, typer.Option("--lake", help="Also wait until the lake has the rows.")
    ] = False,
    timeout: Annotated[int, typer.Option(help="Seconds to wait for the lake.", min=1)] = 300,
    scratch: Annotated[
        str,
        typer.Option(help="Use this gateway and keep it; by default a new one, which is deleted."),
    ] = "",
) -> None:
    """Run an end-to-end check on a scratch gateway: rules, push, pull, merge, flush; clean up.

    The gateway set by --gateway is not used. A scratch gateway is created and deleted, with --lake
    its tables in the lake too. With --scratch, or if a token is set (then for lakesync-smoke), only
    the rows are deleted and the gateway is kept; the token must be an administrator's of that
    gateway. The flush starts a Glue run.

    Exits with 0 if every step succeeded, else with 1, and names the step that failed.

    Example:
      lakesync smoke --stack lakesync --lake
    """
    place = session.place
    url = place.url or session.aws.output("HttpUrl")
    run = uuid4().hex[:12]
    is_ours = not scratch and not place.token
    scratch = f"{SCRATCH}-{run}" if is_ours else scratch or SCRATCH
    way = Scratch(url, scratch, _token(session, scratch), _user(session))
    failed: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="lakesync-smoke-") as folder,
        Job(way, run, Path(folder)) as job,
    ):
        for name, step in _steps(session, job, timeout if lake else 0):
            if not _done(session, name, step):
                failed.append(name)
                break
        if not _done(session, _CLEAN, job.delete if is_ours else job.remove):
            failed.append(_CLEAN)
        if is_ours and lake and not _done(session, _LAKE, lambda: _dropped(session, scratch)):
            failed.append(_LAKE)
    if failed:
        raise typer.Exit(FAILED)


def _steps(
    session: Session, job: Job, lake_timeout_s: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the steps by name; that of the lake if it has any time."""
    yield "rules", job.rules
    yield "push", job.push
    yield "pull", job.pull
    yield "edit", job.edit
    yield "flush", job.flush
    if lake_timeout_s:
        yield "lake", lambda: job.lake(session.aws, lake_timeout_s)


def _dropped(session: Session, scratch: str) -> str:
    from lakesync.cli.lake_removal import remove_from_lake

    left = remove_from_lake(session.aws, scratch)
    if any(left.values()):
        raise Failed(f"something is left of {scratch} in the lake: {left}")
    return "its tables in the lake are dropped"


def _done(session: Session, name: str, step: Callable[[], str]) -> bool:
    """Do a step and report how it went; what it may raise is its answer, not the command's end."""
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
    """Return a signer of tokens for the scratch gateway, or gives the one that was set."""
    from lakesync.cli.tokens import sign

    given = session.place.token
    secret = "" if given else session.aws.jwt_secret()

    def token(user: str, role: str) -> str:
        claims = {"sub": user, "gw": scratch, "role": role}
        return given or sign(claims, OWN_TOKEN_S, secret, int(time.time()))

    return token
