"""`lakesync doctor`, `smoke`, `cost`, `restored` and `stack`: a deployment as a whole.

What is wrong with it and what to do about it; an end-to-end check on a scratch gateway; what it
costs in a month; its table that was restored from a backup; its deletion.
"""

from __future__ import annotations

import inspect
import json
import re
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from lakesync.analysis.connection import FAILED, UsageFault, fault_of
from lakesync.cli.cost import AMOUNTS, CHOICES, MONTH_DAYS, Description, described, option
from lakesync.cli.cost.bill import DAYS_MAX, as_json, shares, show
from lakesync.cli.doctor import Verdict
from lakesync.cli.session import OWN_TOKEN_S, Session, audited, command
from lakesync.cli.smoke import SCRATCH, Failed, Job, Scratch
from lakesync.core.wording import plural
from lakesync.errors import LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from lakesync.buffer.dynamo import DynamoBuffer
    from lakesync.cli.cost.bill import PriceList
    from lakesync.cli.doctor import Diagnosis
    from lakesync.cli.input_output import Output
    from lakesync.cli.removal import Inventory

# --- doctor ---------------------------------------------------------------------------------------


_LIST: Final = re.compile(r"[0-9]+(,[0-9]+){3,4}")
_MARKS: Final = {
    Verdict.WELL: "well", Verdict.WRONG: "WRONG",
    Verdict.UNCHECKED: "not checked", Verdict.NOTE: "note",
}  # fmt: skip


@command
def doctor(
    session: Session,
    *,
    skip: Annotated[
        list[str] | None,
        typer.Option(help="Skip the check of this name. Repeatable."),
    ] = None,
    before: Annotated[
        bool, typer.Option("--before", help="Check the account before a stack is deployed to it.")
    ] = False,
    parameter: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, as it will be deployed (with --before). Repeatable."),
    ] = None,
    artefacts: Annotated[
        str, typer.Option(help="The bucket of `sam deploy --s3-bucket` (with --before).")
    ] = "",
) -> None:
    """Check a deployment from outside and inside, and print for each finding what to do.

    Nothing is changed. It checks the stack, its address, the clock, functions and layers,
    permissions (by IAM's simulation), quotas, alarms and their subscribers, schedules, the lag of
    buffer, lake and destinations, connectors and polled flows, queues, whether the buffer can be
    restored, and versions in the bucket. Needs AWS credentials.

    With --before it checks the account and this machine instead: API Gateway's log role, quotas,
    Glue in the Region, Lake Formation, the key of the bucket for built packages, the rights to
    deploy a stack of the name --stack (by default lakesync), and SAM's version.

    On the stage local it notes what such a stack cannot have: quotas, subscribers of alarms.

    Exits with 0 if all is well, 1 if something is wrong, 2 if something could not be checked.

    Example:
      lakesync doctor --stack lakesync
      lakesync doctor --stack lakesync --json --skip service-quotas
      lakesync doctor --before --stack lakesync --parameter SocketAccessLogs=on
    """
    skipped = frozenset(skip or ())
    if before:
        _report(session, _before(session, skipped, parameter or [], artefacts))
    else:
        _report(session, _deployed(session, skipped))


def _report(session: Session, results: Iterator[tuple[str, list[Diagnosis]]]) -> None:
    from lakesync.cli.doctor import exit_code

    every: list[Diagnosis] = []
    for name, diagnoses in results:
        every += diagnoses
        for diagnosis in diagnoses:
            _tell(session, name, diagnosis)
    session.out.note(_summary(every))
    raise typer.Exit(exit_code(every))


def _deployed(session: Session, skipped: frozenset[str]) -> Iterator[tuple[str, list[Diagnosis]]]:
    from lakesync.cli.doctor import Deployed
    from lakesync.cli.doctor.checks import CHECKS, examine

    _known(skipped, CHECKS)
    return examine(CHECKS, Deployed(session.aws, session.place.url), skipped)


def _before(
    session: Session, skipped: frozenset[str], parameters: list[str], artefacts: str
) -> Iterator[tuple[str, list[Diagnosis]]]:
    from lakesync.cli.doctor.checks import CHECKS_AHEAD, LISTS, Ahead, examine

    _known(skipped, CHECKS_AHEAD)
    given: dict[str, str] = {}
    for each in parameters:
        name, equals, value = each.partition("=")
        if not equals or (name in LISTS and not _LIST.fullmatch(value)):
            raise UsageFault(
                f"--parameter {each[:40]!r} is not NAME=VALUE as the template takes it"
            )
        given[name] = value
    stack = session.place.stack or "lakesync"
    return examine(CHECKS_AHEAD, Ahead(session.aws, stack, artefacts, given), skipped)


def _known(skipped: frozenset[str], checks: Collection[str]) -> None:
    if strangers := sorted(skipped - set(checks)):
        raise UsageFault(f"there is no check {strangers[0][:20]!r}: use {', '.join(checks)}")


def _tell(session: Session, check: str, diagnosis: Diagnosis) -> None:
    answer = {
        "check": check,
        "verdict": str(diagnosis.verdict),
        "what": diagnosis.what,
        "do": diagnosis.do,
    }
    lines = f"{_MARKS[diagnosis.verdict]:<11}  {check}: {diagnosis.what}"
    if diagnosis.do:
        lines += f"\n{'':13}→ {diagnosis.do}"
    session.out.answer(answer, lines)


def _summary(diagnoses: list[Diagnosis]) -> str:
    counts = dict.fromkeys(Verdict, 0)
    for diagnosis in diagnoses:
        counts[diagnosis.verdict] += 1
    wrong, unchecked = counts[Verdict.WRONG], counts[Verdict.UNCHECKED]
    if not wrong and not unchecked:
        notes = f", {plural(counts[Verdict.NOTE], 'note')}" if counts[Verdict.NOTE] else ""
        return f"all is well: {plural(counts[Verdict.WELL], 'check')}{notes}"
    return f"{wrong} wrong, {unchecked} not checked, {counts[Verdict.WELL]} well"


# --- smoke ----------------------------------------------------------------------------------------


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
    yield "rules", job.rules
    yield "push", job.push
    yield "pull", job.pull
    yield "edit", job.edit
    yield "flush", job.flush
    if lake_timeout_s:
        yield "lake", lambda: job.lake(session.aws, lake_timeout_s)


def _dropped(session: Session, scratch: str) -> str:
    from lakesync.cli.removal import remove_from_lake

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
    from lakesync.cli.session import subject

    return (subject(session.place.token) if session.place.token else None) or _USER


def _token(session: Session, scratch: str) -> Callable[[str, str], str]:
    """Return a signer of tokens for the scratch gateway, or gives the one that was set."""
    from lakesync.cli.session import sign

    given = session.place.token
    secret = "" if given else session.aws.jwt_secret()

    def token(user: str, role: str) -> str:
        claims = {"sub": user, "gw": scratch, "role": role}
        return given or sign(claims, OWN_TOKEN_S, secret, int(time.time()))

    return token


# --- cost -----------------------------------------------------------------------------------------


_REGION: Final = "us-east-1"
_DEFAULTS: Final = Description()


def _with_inputs(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each input of a description, with its bounds and its unit."""
    parameters = list(inspect.signature(function).parameters.values())[:1]
    hints: dict[str, Any] = dict(function.__annotations__)

    def takes(
        name: str, kind: Any, default: object, words: str, metavar: str | None = None
    ) -> None:
        own = [option(name)] if kind is bool else []  # a flag has no opposite
        hints[name] = Annotated[kind, typer.Option(*own, help=words, metavar=metavar or None)]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))

    for name, amount in AMOUNTS.items():
        words = f"{amount.words} From {amount.least:g} to {amount.most:,.0f} {amount.unit}."
        takes(name, float, getattr(_DEFAULTS, name), words, amount.unit.upper())
    for name, choice in CHOICES.items():
        takes(name, str, getattr(_DEFAULTS, name), choice.words, "|".join(choice.options))
    words = "Price what the stack used, rather than a description."
    takes("from_usage", bool, default=False, words=words)
    words = f"Of --from-usage: days to look back at, from 1 to {DAYS_MAX}."
    takes("days", int, MONTH_DAYS, words)
    words = f"Whose prices are taken; by default {_REGION}, of --from-usage the stack's own."
    takes("region", str | None, None, words)
    words = "A file of prices, as --print-prices makes it; by default LakeSync's own."
    takes("prices", str | None, None, words, "FILE")
    words = "Print a file of the Region's prices to be filled in: those that are known, else null."
    takes("print_prices", bool, default=False, words=words)
    function.__annotations__ = hints
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what `command` reads
    return function


@command
@_with_inputs
def cost(session: Session, **given: Any) -> None:
    """Show what a stack costs in a month of 30 days, by service, and what is charged in any case.

    On demand and without free tier, at AWS's prices of the day that the answer names. A description
    needs no AWS credentials. --from-usage reads the metrics of the stack in its own Region, and
    shares what they cost among tenants, if the stack's parameter Watching has the word gateways.

    Example:
      lakesync cost --devices 10000 --receivers 9
      lakesync cost --devices 500 --mode polling --poll-every-s 60
      lakesync cost --devices 10000 --tenants 1000 --tables 3 --lake small-batches --json
      lakesync cost --from-usage --days 7 --stack prod
      lakesync cost --print-prices --region eu-west-1 > prices.json
      lakesync cost --prices prices.json --region eu-west-1
    """
    from lakesync.cli.cost.bill import bill, read_prices, template

    description = described(given)
    if given["print_prices"]:
        if given["prices"] is not None or given["from_usage"]:
            raise UsageFault("--print-prices prices nothing: leave --prices and --from-usage out")
        today = datetime.now(tz=UTC).date()
        session.out.text(json.dumps(template(given["region"] or _REGION, today), indent=1))
        return
    prices = None if given["prices"] is None else read_prices(given["prices"])
    if given["from_usage"]:
        if description != _DEFAULTS:
            raise UsageFault(
                "--from-usage prices what was used: leave the description's options out"
            )
        _from_usage(session, given["days"], given["region"], prices)
        return
    answer = bill(description, given["region"] or _region_of(prices), prices)
    if session.out.json_lines:
        session.out.json(as_json(answer, description))
    else:
        show(session.out, answer)


def _region_of(prices: PriceList | None) -> str:
    """Return whose prices are taken if no Region is named: those of a file with only one."""
    given = () if prices is None else tuple(prices.regions)
    return given[0] if len(given) == 1 else _REGION


def _from_usage(session: Session, days: int, region: str | None, prices: PriceList | None) -> None:
    from lakesync.cli.cost.bill import priced, tenants, used_events

    if not 1 <= days <= DAYS_MAX:
        raise UsageFault(f"--days is from 1 to {DAYS_MAX} days, not {days}")
    aws, now = session.aws, datetime.now(tz=UTC)
    with session.out.progress("reading metrics …"):
        answer = priced(used_events(aws, days, now), region or aws.region or _REGION, prices)
        each = shares(answer, tenants(aws, days, now))
    if session.out.json_lines:
        session.out.json(as_json(answer) | {"days": days, "tenants": each})
        return
    show(session.out, answer)
    columns = ("gateway", "pushes", "deltas in", "deltas out", "$ a month")
    none = "by tenant: no metrics of gateways; put gateways into the stack's parameter Watching"
    session.out.table(columns, [tuple(one.values()) for one in each], empty=none)


# --- restored -------------------------------------------------------------------------------------


@command
def restored(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The restored DynamoDB table.")],
    no_record: Annotated[
        bool,
        typer.Option("--no-record", help="Keep no record, because the stack no longer exists."),
    ] = False,
) -> None:
    """Prepare a restored DynamoDB table for use: protect it, and begin a new epoch in each gateway.

    It enables point-in-time recovery, deletion protection and the stream, which a restore leaves
    off. Every cursor becomes void: clients read everything again, keep their unsent edits, and push
    again their writes that the table lost. Run it while no function writes to the table. Repeating
    it is safe, but makes clients read everything once more. Needs AWS credentials.
    docs/operations.md has the steps before and after. The change is in the record of the stack
    (lakesync audit --stack-wide), and each new epoch in the record of its gateway.

    Example:
      lakesync restored lakesync-prod-buffer-restored --stack lakesync-prod
    """
    from lakesync.cli.doctor.protection import protect
    from lakesync.ports.stores import STACK

    if not no_record and not session.aws.stack:
        raise UsageFault("name the stack, which keeps the record: --stack; or pass --no-record")
    buffer = session.aws.buffer(table)

    def recorded(operation: str, gateway: str) -> AbstractContextManager[None]:
        if no_record:
            return nullcontext()
        of = buffer.gateways() if gateway == STACK else [gateway]
        return audited(session, operation, table, partial(_epochs, buffer, of), gateway=gateway)

    with recorded("restoreBuffer", STACK):
        off = protect(session.aws.client("dynamodb"), table)
        sentence = f"switched on {', '.join(off)}" if off else "protected already"
        session.out.answer({"table": table, "switchedOn": off}, f"{table}: {sentence}")
        gateways = buffer.gateways()
        for gateway in gateways:
            with recorded("beginEpoch", gateway):
                _begin_epoch(session, buffer, gateway)
    session.out.note(
        f"{plural(len(gateways), 'gateway')} in {table}; to put it in use: "
        f"sam deploy --parameter-overrides BufferTableName={table}"
    )


def _begin_epoch(session: Session, buffer: DynamoBuffer, gateway: str) -> None:
    from lakesync.errors import GatewayDeleted
    from lakesync.maintenance.horizons import begin_epoch

    try:
        epoch = begin_epoch(buffer, gateway, wall_clock=_now_ms)
    except GatewayDeleted:
        session.out.answer(
            {"gateway": gateway, "epoch": None, "deleted": True},
            f"{gateway}: is deleted and begins no epoch; go on with lakesync gateways delete",
        )
        return
    session.out.answer({"gateway": gateway, "epoch": epoch}, f"{gateway}: epoch {epoch}")


def _epochs(buffer: DynamoBuffer, gateways: list[str]) -> dict[str, str]:
    from lakesync.core.layout import MAIN_LANE
    from lakesync.ports import NO_HEAD

    return {name: buffer.heads(name).get(MAIN_LANE, NO_HEAD).epoch for name in gateways}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- stack ----------------------------------------------------------------------------------------


@command
def delete(
    session: Session,
    *,
    name: Annotated[str, typer.Argument(help="The CloudFormation stack's name.")],
    yes: Annotated[
        str,
        typer.Option("--yes", metavar="NAME", help="Confirm by the stack's name: delete it."),
    ] = "",
) -> None:
    """Delete a whole stack for good: buckets with all versions, secrets, lake tables, everything.

    Without --yes it only lists what would go and what stays. A stack whose data are protected
    (Stage=prod, termination protection, deletion protection of a table) is refused. Tables of
    another stack under the same prefix are kept. Safe to repeat after an interruption. Needs AWS
    credentials with the rights to delete all that is listed.

    Example:
      lakesync stack delete trial
      lakesync stack delete trial --yes trial
    """
    from lakesync.analysis.connection import Aws
    from lakesync.cli.removal import StackRemoval

    if yes and yes != name:
        raise UsageFault(f"--yes confirms {yes!r}, and the stack is {name!r}: pass --yes {name}")
    removal = StackRemoval(Aws(replace(session.place, stack=name)))
    removal.must_be_unprotected()
    inventory = removal.inventory()
    _show(session.out, name, inventory, deleted=bool(yes))
    if not yes:
        session.out.note(f"nothing was deleted: to delete it, repeat this with --yes {name}")
        return
    removal.remove(session.out.note)
    session.out.note(f"the stack {name} is deleted")


def _show(out: Output, name: str, inventory: Inventory, *, deleted: bool) -> None:
    answer = {
        "stack": name,
        "delete": deleted,
        "resources": inventory.resources,
        "buckets": inventory.buckets,
        "secrets": inventory.secrets,
        "tables": inventory.tables,
        "logGroups": inventory.log_groups,
        "kept": inventory.kept,
    }
    out.answer(answer, "\n".join(inventory.lines()))
