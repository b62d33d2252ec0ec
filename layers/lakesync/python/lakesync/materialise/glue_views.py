"""Views in the Glue Data Catalog, in the form that Athena uses for its own.

A view is a table of the type ``VIRTUAL_VIEW``. Its text is a comment for Presto, with a JSON
document in base64: the query, and the columns with their types. The permission to make tables is
enough to make views, and nothing has to be started.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from lakesync.materialise.lake_schema import STACK
from lakesync.materialise.views import DIALECTS, views_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.materialise.views import View, ViewedTable

TEXT_CHARACTERS_MAX: Final = 409_600
"""Length of a view's document in the catalogue: enough for the live view of about 250 columns."""
_OPENING: Final = "/* Presto View: "
_CLOSING: Final = " */"
_EXPANDED: Final = "/* Presto View */"
_VIEW: Final = "VIRTUAL_VIEW"
MISSING: Final = "missing"
_OUTDATED: Final = "outdated"
_TAKEN: Final = "something else has its name"
_ATHENA: Final = DIALECTS["athena"]
# The catalogue's names of types that Athena's engine names differently.
_IN_CATALOGUE: Final = {"varchar": "string", "timestamp(6)": "timestamp", "varbinary": "binary"}


class GlueViews:
    """The views of lake tables in the catalogue of an account."""

    def __init__(self, glue: Any) -> None:
        self._glue = glue

    def keep(self, table: ViewedTable) -> Mapping[str, str]:
        """Make a table's views, and replace those that are out of date. Idempotent.

        A view that somebody else made under the same name is left unchanged.

        Returns:
            By view, why it is not as it should be.
        """
        return self.keep_these(table, views_of(table, "athena"))

    def keep_these(self, table: ViewedTable, views: Iterable[View]) -> Mapping[str, str]:
        """Make or replace views beside a table, of whatever tables they are; as `keep` does."""
        faults: dict[str, str] = {}
        for view in views:
            try:
                fault = self._keep_one(table, view)
            except (BotoCoreError, ClientError) as error:
                fault = str(error)
            if fault:
                faults[view.name] = fault
        return faults

    def wrong(self, table: ViewedTable) -> Mapping[str, str]:
        """Return by view what `keep` would change: it is missing, is outdated, or is not ours."""
        return self.these_wrong(table, views_of(table, "athena"))

    def these_wrong(self, table: ViewedTable, views: Iterable[View]) -> Mapping[str, str]:
        """Return by view what `keep_these` would change."""
        wanted = {view.name: table_input(table, view) for view in views}
        conditions = {name: self._condition(table, each) for name, each in wanted.items()}
        return {name: condition for name, condition in conditions.items() if condition}

    def drop_these(self, table: ViewedTable, names: Iterable[str]) -> None:
        """Remove views beside a table, except those that somebody else made. Idempotent."""
        for name in names:
            try:
                current = self._glue.get_table(DatabaseName=table.database, Name=name)["Table"]
            except self._glue.exceptions.EntityNotFoundException:
                continue
            if _is_ours(current, table):
                self._glue.delete_table(DatabaseName=table.database, Name=name)

    def make_database(self, name: str, comment: str) -> None:
        """Make a database, unless it exists."""
        try:
            self._glue.get_database(Name=name)
        except self._glue.exceptions.EntityNotFoundException:
            with suppress(self._glue.exceptions.AlreadyExistsException):
                self._glue.create_database(DatabaseInput={"Name": name, "Description": comment})

    def _keep_one(self, table: ViewedTable, view: View) -> str:
        wanted = table_input(table, view)
        if len(wanted["ViewOriginalText"]) > TEXT_CHARACTERS_MAX:
            return f"its text is longer than {TEXT_CHARACTERS_MAX} characters"
        condition = self._condition(table, wanted)
        if condition == MISSING:
            return self._make(table, wanted)
        if condition == _OUTDATED:
            self._glue.update_table(DatabaseName=table.database, TableInput=wanted)
            return ""
        return condition

    def _condition(self, table: ViewedTable, wanted: Mapping[str, Any]) -> str:
        """Return what is wrong with a view; empty if it is as it should be."""
        try:
            current = self._glue.get_table(DatabaseName=table.database, Name=wanted["Name"])
        except self._glue.exceptions.EntityNotFoundException:
            return MISSING
        if not _is_ours(current["Table"], table):
            return _TAKEN
        return "" if is_as(current["Table"], wanted) else _OUTDATED

    def _make(self, table: ViewedTable, wanted: Mapping[str, Any]) -> str:
        try:
            self._glue.create_table(DatabaseName=table.database, TableInput=wanted)
        except self._glue.exceptions.AlreadyExistsException:
            return "somebody else made it meanwhile"
        return ""


def table_input(table: ViewedTable, view: View) -> dict[str, Any]:
    columns = [
        {"Name": name, "Type": _in_catalogue(kind), "Comment": table.comments.get(name, "")}
        for name, kind in view.columns
    ]
    return {
        "Name": view.name,
        "Description": view.comment,
        "TableType": _VIEW,
        "Parameters": {"presto_view": "true", "comment": view.comment, STACK: table.stack},
        "StorageDescriptor": {"Columns": columns, "SerdeInfo": {}},
        "ViewOriginalText": _OPENING + _document(table, view) + _CLOSING,
        "ViewExpandedText": _EXPANDED,
    }


def is_as(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether the catalogue's entry of a view is as it should be."""
    columns = current.get("StorageDescriptor", {}).get("Columns", [])
    shown = [
        {"Name": each["Name"], "Type": each.get("Type"), "Comment": each.get("Comment", "")}
        for each in columns
    ]
    said = (current.get("ViewOriginalText"), current.get("Description"), shown)
    return said == (
        wanted["ViewOriginalText"],
        wanted["Description"],
        wanted["StorageDescriptor"]["Columns"],
    )


def _is_ours(view: Mapping[str, Any], table: ViewedTable) -> bool:
    is_view = view.get("TableType") == _VIEW
    return is_view and view.get("Parameters", {}).get(STACK) == table.stack


def _document(table: ViewedTable, view: View) -> str:
    body = {
        "originalSql": view.select,
        "catalog": "awsdatacatalog",
        "schema": table.database,
        "columns": [{"name": name, "type": _ATHENA.type_name(kind)} for name, kind in view.columns],
    }
    return base64.b64encode(json.dumps(body, separators=(",", ":")).encode()).decode()


def _in_catalogue(kind: str) -> str:
    name = _ATHENA.type_name(kind)
    return _IN_CATALOGUE.get(name, name)
