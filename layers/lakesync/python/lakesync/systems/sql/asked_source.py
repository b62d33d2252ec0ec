"""A source that another process asks.

Databases may be reached from some subnets only. The administration is in none, so its
questions are asked by another process, which is there (`AskedSource`): it passes them on with the
settings, secrets included, of what is not yet registered. The request is encrypted on its way, and
nobody logs it.
"""

from __future__ import annotations

import json
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.adapters.network import NO_ANSWER
from lakesync.connectors.port import ConnectorType, SourceColumn, SourceTable, Storage
from lakesync.connectors.registry import configured, connector_type
from lakesync.core.flows import DATABASES, place_of_type
from lakesync.errors import (
    BY_CODE,
    AdapterFailed,
    AdapterUnreachable,
    LakeSyncError,
    NotOffered,
)
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import BaseModel

    from lakesync.connectors.port import Asks, Connector, Outside, SourcePage
    from lakesync.ports import ObjectStore
    from lakesync.result import Result
    from lakesync.systems.sql.sql_settings import CapturableSettings

T = TypeVar("T")
CHECK: Final = "check"
DISCOVER: Final = "discover"
FORGET: Final = "forget"


class AskedSource:
    """`lakesync.connectors.port.Connector` that is asked elsewhere, and reads nothing."""

    def __init__(self, kind: str, settings: BaseModel, storage: Storage, asks: Asks) -> None:
        self._kind = kind
        self._settings = settings
        self._storage = storage
        self._asks = asks

    def check(self) -> Result[str, LakeSyncError]:
        return self._answer(CHECK, lambda answer: str(answer["sentence"]))

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        return self._answer(DISCOVER, _tables)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Read nothing: the function that polls it does."""
        del cursor, rows_max, poll_ms
        return Err(NotOffered(f"{table} is read by the function that polls it"))

    def close(self) -> None:
        """Close nothing: it was closed behind each answer."""

    def _answer(
        self, does: str, read: Callable[[Mapping[str, Any]], T]
    ) -> Result[T, LakeSyncError]:
        answer = self._asks(_question(self._kind, self._settings, self._storage, does))
        if answer is None:
            return Err(AdapterUnreachable(NO_ANSWER))
        if refused := answer.get("refused"):
            kind = BY_CODE.get(refused["code"], AdapterFailed)
            return Err(kind(refused["message"], field=refused["field"]))
        return Ok(read(answer))


def reader_of(
    kind: str, settings: CapturableSettings, storage: Storage, outside: Outside
) -> Connector:
    """Return the connector of a type: by the source's log, by its tables, or asked elsewhere."""
    if outside.asks is not None:
        return AskedSource(kind, settings, storage, outside.asks)
    reader = module_of(kind, "capture" if settings.changes else "source")
    made: Connector = reader.made(settings, storage, outside.databases)
    return made


def module_of(kind: str, part: str) -> Any:
    """Import a part of a system when it is at work: it imports the driver, and the settings."""
    return import_module(f"lakesync.systems.{kind}.{kind}_{part}")


def forget_elsewhere(
    kind: str, settings: BaseModel, storage: Storage, following: BaseModel | None, asks: Asks
) -> str:
    """Have what a connector created at its source removed; returns what remains."""
    question = _question(kind, settings, storage, FORGET)
    if following is not None:
        question["following"] = _plain(following)
    answer = asks(question)
    if answer is None:
        return f"What it created at its source may remain: {NO_ANSWER}."
    if refused := answer.get("refused"):
        return f"What it created at its source may remain: {refused['message']}."
    return str(answer["sentence"])


def answered(question: Mapping[str, Any], objects: ObjectStore, outside: Outside) -> dict[str, Any]:
    """Answer a question about a source.

    Args:
        question: as `AskedSource` asks it.
        objects: where connectors keep what is large.
        outside: what connectors may use.
    """
    try:
        return _answered(question, objects, outside)
    except LakeSyncError as error:
        return {"refused": {"code": error.code, "message": error.message, "field": error.field}}


def _answered(
    question: Mapping[str, Any], objects: ObjectStore, outside: Outside
) -> dict[str, Any]:
    name, does = str(question["type"]), question["does"]
    if place_of_type(name) != DATABASES:
        raise NotOffered(f"sources of the type {name} are not databases")
    kind, place = connector_type(name), (question["gateway"], question["name"])
    storage = Storage.scratch(*place) if question["isScratch"] else Storage(objects, *place)
    settings = configured(kind, question["configuration"])
    if does == FORGET:
        return {"sentence": _forgotten(kind, settings, storage, question, outside)}
    with closing(kind.make(settings, storage, outside)) as connector:
        if does == DISCOVER:
            return {"tables": [_written(table) for table in connector.discover().unwrap()]}
        return {"sentence": connector.check().unwrap()}


def _forgotten(
    kind: ConnectorType,
    settings: BaseModel,
    storage: Storage,
    question: Mapping[str, Any],
    outside: Outside,
) -> str:
    following = question.get("following")
    after = configured(kind, following) if following is not None else None
    return kind.forget(settings, storage, after, outside) if kind.forget else ""


def _question(kind: str, settings: BaseModel, storage: Storage, does: str) -> dict[str, Any]:
    return {
        "type": kind,
        "gateway": storage.gateway,
        "name": storage.name,
        "isScratch": storage.is_scratch,
        "configuration": _plain(settings),
        "does": does,
    }


def _plain(settings: BaseModel) -> dict[str, Any]:
    """Return settings as they were given, secrets included."""
    given = settings.model_dump(by_alias=True, exclude_unset=True)
    plain: dict[str, Any] = json.loads(
        json.dumps(given, default=lambda secret: secret.get_secret_value())
    )
    return plain


def _written(table: SourceTable) -> dict[str, Any]:
    return {"name": table.name, "columns": [*map(list, table.columns)], "key": [*table.key]}


def _tables(answer: Mapping[str, Any]) -> tuple[SourceTable, ...]:
    return tuple(
        SourceTable(
            table["name"],
            tuple(SourceColumn(*column) for column in table["columns"]),
            tuple(table["key"]),
        )
        for table in answer["tables"]
    )
