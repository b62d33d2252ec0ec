"""`lakesync lake share` and `unshare`: one table over many gateways."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.audited import audited
from lakesync.cli.faults import UsageFault
from lakesync.cli.output import plural
from lakesync.cli.session import Session, command
from lakesync.ports.audit import STACK

if TYPE_CHECKING:
    from lakesync.materialise.sharing import Share


@command
def share(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The table, by its name at the gateways.")],
    name: Annotated[
        str | None, typer.Option("--as", help="What it is called; without, as the table is.")
    ] = None,
    gateways: Annotated[
        str, typer.Option(help="Which gateways', as a pattern: team-* or *-eu.")
    ] = "*",
) -> None:
    """Make one table in the lake of all gateways' tables of a name. Whoever reads it reads all.

    It is a view: _gateway says whose a row is, and who asks for one reads that one's alone. Tables
    and columns that come later join it by themselves. Athena has it in a database of its own,
    beside NAME__rows and NAME__live without tombstones and LakeSync's columns; see also
    lakesync query --shared, and lakesync lake views --shared for other engines.

    Repeating it renews it, over the gateways that are named then. The stack keeps the record of it:
    lakesync audit --stack-wide.

    Example:
      lakesync lake share flights
      lakesync lake share flights --as flights_eu --gateways "*-eu"
    """
    from lakesync.cli.lake_shares import declare, keep_views, share_shown, shares_of
    from lakesync.core.names import in_words
    from lakesync.materialise.sharing import shared_database

    called = in_words(table) if name is None else name
    shows = partial(share_shown, session.aws, called)
    with (
        session.out.progress("reading the lake …"),
        audited(session, "shareLakeTable", called, shows, gateway=STACK),
    ):
        made = declare(session.aws, called, table, gateways)
        has_views = keep_views(session.aws, shares_of(session.aws), called)
    place = f"{shared_database(session.aws.output('DatabasePrefix'))}.{called}"
    if session.out.json_lines:
        session.out.json({"share": called, "place": place, **share_shown(session.aws, called)})
        return
    _tell(session, made, place if has_views else called)
    if not has_views:
        session.out.note(
            f"the catalogue has no views: lakesync lake views --shared {called} --engine trino"
        )


@command
def unshare(
    session: Session,
    *,
    name: Annotated[str, typer.Argument(help="The share, as lakesync lake status names it.")],
) -> None:
    """Take a shared table back. It is a view: no row of any gateway goes. Safe to repeat.

    Example:
      lakesync lake unshare flights
    """
    from lakesync.cli.lake_shares import share_shown, withdraw

    shows = partial(share_shown, session.aws, name)
    with audited(session, "unshareLakeTable", name, shows, gateway=STACK):
        was = withdraw(session.aws, name)
    if not was:
        raise UsageFault(f"there is no shared table {name[:64]!r}: see lakesync lake status")
    session.out.answer({"share": name, "shared": False}, f"{name} is shared no more")


def _tell(session: Session, made: Share, place: str) -> None:
    columns = made.columns()
    if not made.members:
        session.out.text(f"{place}: no gateway has it in the lake yet; each joins by itself")
        return
    tables, wide = plural(len(made.members), "table"), plural(len(columns), "column")
    session.out.text(f"{place} is {tables} of as many gateways, {wide}")
    for column in columns:
        if column.is_text_of_others:
            kinds = sorted({one.type for one in column.types.values()})
            session.out.note(f"{column.name} is text: the tables have {', '.join(kinds)}")
