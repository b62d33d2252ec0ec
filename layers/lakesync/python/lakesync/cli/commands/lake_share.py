"""`lakesync lake share` and `unshare`: one table over many gateways."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.audited import audited
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import NotFound
from lakesync.ports.audit import STACK

if TYPE_CHECKING:
    from lakesync.materialise.sharing import Share


@command
def share(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The table, by its name at the gateways.")],
    name: Annotated[
        str | None,
        typer.Option("--as", help="The shared table's name; by default the table's own."),
    ] = None,
    gateways: Annotated[
        str, typer.Option(help="A pattern that selects the gateways: team-* or *-eu.")
    ] = "*",
) -> None:
    """Share a table: create a view in the lake over all gateways' tables of that name.

    Anyone who may read the view reads the rows of all these gateways. The column _gateway names
    each row's gateway; a filter on it reads only that gateway's table. New tables and columns are
    included automatically. Athena has the view in a separate database, with NAME__rows and
    NAME__live, which omit tombstones and LakeSync's columns. See also lakesync query --shared, and
    lakesync lake views --shared for other engines.

    Repeating the command replaces the share and its pattern. Needs AWS credentials. The change is
    in the record of the stack: lakesync audit --stack-wide.

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
    name: Annotated[
        str, typer.Argument(help="The shared table's name, as in lakesync lake status.")
    ],
) -> None:
    """Remove a shared table. It is a view: no rows of any gateway are removed.

    Example:
      lakesync lake unshare flights
    """
    from lakesync.cli.lake_shares import share_shown, withdraw

    shows = partial(share_shown, session.aws, name)
    with audited(session, "unshareLakeTable", name, shows, gateway=STACK):
        was = withdraw(session.aws, name)
    if not was:
        raise NotFound(f"there is no shared table {name[:64]!r}: see lakesync lake status")
    session.out.answer({"share": name, "shared": False}, f"{name} is no longer shared")


def _tell(session: Session, made: Share, place: str) -> None:
    columns = made.columns()
    if not made.members:
        session.out.text(f"{place}: no gateway has it in the lake yet; each is added automatically")
        return
    tables, wide = plural(len(made.members), "table"), plural(len(columns), "column")
    session.out.text(f"{place} has {tables} of as many gateways, {wide}")
    for column in columns:
        if column.is_text_of_others:
            kinds = sorted({one.type for one in column.types.values()})
            session.out.note(f"{column.name} is text: the tables have {', '.join(kinds)}")
