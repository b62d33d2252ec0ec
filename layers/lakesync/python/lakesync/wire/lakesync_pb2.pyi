from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeltaOp(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DELTA_OP_UNSPECIFIED: _ClassVar[DeltaOp]
    DELTA_OP_INSERT: _ClassVar[DeltaOp]
    DELTA_OP_UPDATE: _ClassVar[DeltaOp]
    DELTA_OP_DELETE: _ClassVar[DeltaOp]
    DELTA_OP_REMOVE: _ClassVar[DeltaOp]
DELTA_OP_UNSPECIFIED: DeltaOp
DELTA_OP_INSERT: DeltaOp
DELTA_OP_UPDATE: DeltaOp
DELTA_OP_DELETE: DeltaOp
DELTA_OP_REMOVE: DeltaOp

class ColumnDelta(_message.Message):
    __slots__ = ("column", "value")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    column: str
    value: bytes
    def __init__(self, column: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class RowDelta(_message.Message):
    __slots__ = ("op", "table", "row_id", "columns", "hlc", "client_id", "delta_id")
    OP_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    HLC_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    DELTA_ID_FIELD_NUMBER: _ClassVar[int]
    op: DeltaOp
    table: str
    row_id: str
    columns: _containers.RepeatedCompositeFieldContainer[ColumnDelta]
    hlc: int
    client_id: str
    delta_id: str
    def __init__(self, op: _Optional[_Union[DeltaOp, str]] = ..., table: _Optional[str] = ..., row_id: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[ColumnDelta, _Mapping]]] = ..., hlc: _Optional[int] = ..., client_id: _Optional[str] = ..., delta_id: _Optional[str] = ...) -> None: ...

class SyncPush(_message.Message):
    __slots__ = ("client_id", "deltas", "last_seen_hlc", "atomic", "epoch", "own_cursor", "request_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_HLC_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWN_CURSOR_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    deltas: _containers.RepeatedCompositeFieldContainer[RowDelta]
    last_seen_hlc: int
    atomic: bool
    epoch: str
    own_cursor: bool
    request_id: int
    def __init__(self, client_id: _Optional[str] = ..., deltas: _Optional[_Iterable[_Union[RowDelta, _Mapping]]] = ..., last_seen_hlc: _Optional[int] = ..., atomic: _Optional[bool] = ..., epoch: _Optional[str] = ..., own_cursor: _Optional[bool] = ..., request_id: _Optional[int] = ...) -> None: ...

class SyncPull(_message.Message):
    __slots__ = ("client_id", "since_hlc", "max_deltas", "epoch", "snapshot", "scope", "removes", "own_cursor", "fresh", "at_least", "request_id", "quarantined")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_HLC_FIELD_NUMBER: _ClassVar[int]
    MAX_DELTAS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    REMOVES_FIELD_NUMBER: _ClassVar[int]
    OWN_CURSOR_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    since_hlc: int
    max_deltas: int
    epoch: str
    snapshot: str
    scope: str
    removes: bool
    own_cursor: bool
    fresh: bool
    at_least: int
    request_id: int
    quarantined: int
    def __init__(self, client_id: _Optional[str] = ..., since_hlc: _Optional[int] = ..., max_deltas: _Optional[int] = ..., epoch: _Optional[str] = ..., snapshot: _Optional[str] = ..., scope: _Optional[str] = ..., removes: _Optional[bool] = ..., own_cursor: _Optional[bool] = ..., fresh: _Optional[bool] = ..., at_least: _Optional[int] = ..., request_id: _Optional[int] = ..., quarantined: _Optional[int] = ...) -> None: ...

class SyncResponse(_message.Message):
    __slots__ = ("deltas", "server_hlc", "has_more", "epoch", "snapshot", "scope", "resync", "schema_version", "behind_ms", "previous_hlc", "first_hlc", "request_id", "progress")
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    SERVER_HLC_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_HLC_FIELD_NUMBER: _ClassVar[int]
    FIRST_HLC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[RowDelta]
    server_hlc: int
    has_more: bool
    epoch: str
    snapshot: str
    scope: str
    resync: Resync
    schema_version: int
    behind_ms: int
    previous_hlc: int
    first_hlc: int
    request_id: int
    progress: Progress
    def __init__(self, deltas: _Optional[_Iterable[_Union[RowDelta, _Mapping]]] = ..., server_hlc: _Optional[int] = ..., has_more: _Optional[bool] = ..., epoch: _Optional[str] = ..., snapshot: _Optional[str] = ..., scope: _Optional[str] = ..., resync: _Optional[_Union[Resync, _Mapping]] = ..., schema_version: _Optional[int] = ..., behind_ms: _Optional[int] = ..., previous_hlc: _Optional[int] = ..., first_hlc: _Optional[int] = ..., request_id: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("read", "total")
    READ_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    read: int
    total: int
    def __init__(self, read: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class Resync(_message.Message):
    __slots__ = ("tables", "others", "named", "tombstone_horizons", "omitted")
    class TombstoneHorizonsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class OmittedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Columns
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Columns, _Mapping]] = ...) -> None: ...
    TABLES_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_HORIZONS_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedScalarFieldContainer[str]
    others: bool
    named: _containers.RepeatedScalarFieldContainer[str]
    tombstone_horizons: _containers.ScalarMap[str, int]
    omitted: _containers.MessageMap[str, Columns]
    def __init__(self, tables: _Optional[_Iterable[str]] = ..., others: _Optional[bool] = ..., named: _Optional[_Iterable[str]] = ..., tombstone_horizons: _Optional[_Mapping[str, int]] = ..., omitted: _Optional[_Mapping[str, Columns]] = ...) -> None: ...

class Columns(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("action_id", "client_id", "hlc", "connector", "action_type", "params", "idempotency_key")
    ACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HLC_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    action_id: str
    client_id: str
    hlc: int
    connector: str
    action_type: str
    params: bytes
    idempotency_key: str
    def __init__(self, action_id: _Optional[str] = ..., client_id: _Optional[str] = ..., hlc: _Optional[int] = ..., connector: _Optional[str] = ..., action_type: _Optional[str] = ..., params: _Optional[bytes] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class ActionPush(_message.Message):
    __slots__ = ("client_id", "actions", "request_id", "epoch")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    actions: _containers.RepeatedCompositeFieldContainer[Action]
    request_id: int
    epoch: str
    def __init__(self, client_id: _Optional[str] = ..., actions: _Optional[_Iterable[_Union[Action, _Mapping]]] = ..., request_id: _Optional[int] = ..., epoch: _Optional[str] = ...) -> None: ...

class ActionSuccess(_message.Message):
    __slots__ = ("action_id", "data", "server_hlc")
    ACTION_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SERVER_HLC_FIELD_NUMBER: _ClassVar[int]
    action_id: str
    data: bytes
    server_hlc: int
    def __init__(self, action_id: _Optional[str] = ..., data: _Optional[bytes] = ..., server_hlc: _Optional[int] = ...) -> None: ...

class ActionError(_message.Message):
    __slots__ = ("action_id", "code", "message", "retryable")
    ACTION_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    action_id: str
    code: str
    message: str
    retryable: bool
    def __init__(self, action_id: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...

class ActionResult(_message.Message):
    __slots__ = ("success", "error")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    success: ActionSuccess
    error: ActionError
    def __init__(self, success: _Optional[_Union[ActionSuccess, _Mapping]] = ..., error: _Optional[_Union[ActionError, _Mapping]] = ...) -> None: ...

class ActionResponse(_message.Message):
    __slots__ = ("results", "server_hlc", "request_id")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SERVER_HLC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ActionResult]
    server_hlc: int
    request_id: int
    def __init__(self, results: _Optional[_Iterable[_Union[ActionResult, _Mapping]]] = ..., server_hlc: _Optional[int] = ..., request_id: _Optional[int] = ...) -> None: ...

class RawRecords(_message.Message):
    __slots__ = ("deltas",)
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    deltas: _containers.RepeatedCompositeFieldContainer[RawDelta]
    def __init__(self, deltas: _Optional[_Iterable[_Union[RawDelta, _Mapping]]] = ...) -> None: ...

class RawDelta(_message.Message):
    __slots__ = ("op", "table", "row_id", "columns", "hlc", "client_id", "delta_id")
    OP_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    HLC_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    DELTA_ID_FIELD_NUMBER: _ClassVar[int]
    op: DeltaOp
    table: str
    row_id: str
    columns: _containers.RepeatedScalarFieldContainer[bytes]
    hlc: int
    client_id: str
    delta_id: str
    def __init__(self, op: _Optional[_Union[DeltaOp, str]] = ..., table: _Optional[str] = ..., row_id: _Optional[str] = ..., columns: _Optional[_Iterable[bytes]] = ..., hlc: _Optional[int] = ..., client_id: _Optional[str] = ..., delta_id: _Optional[str] = ...) -> None: ...

class DeltaOutcome(_message.Message):
    __slots__ = ("index", "delta_id", "outcome", "code", "message", "field")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DELTA_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    index: int
    delta_id: str
    outcome: str
    code: str
    message: str
    field: str
    def __init__(self, index: _Optional[int] = ..., delta_id: _Optional[str] = ..., outcome: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class PushReceipt(_message.Message):
    __slots__ = ("server_hlc", "accepted", "results", "server_time_ms", "request_id", "epoch")
    SERVER_HLC_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    server_hlc: int
    accepted: int
    results: _containers.RepeatedCompositeFieldContainer[DeltaOutcome]
    server_time_ms: int
    request_id: int
    epoch: str
    def __init__(self, server_hlc: _Optional[int] = ..., accepted: _Optional[int] = ..., results: _Optional[_Iterable[_Union[DeltaOutcome, _Mapping]]] = ..., server_time_ms: _Optional[int] = ..., request_id: _Optional[int] = ..., epoch: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("request_id", "code", "message", "field", "retry_after_s", "closes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    code: str
    message: str
    field: str
    retry_after_s: int
    closes: bool
    def __init__(self, request_id: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_s: _Optional[int] = ..., closes: _Optional[bool] = ...) -> None: ...

class RowState(_message.Message):
    __slots__ = ("alive", "deleted", "writers", "columns")
    class Writer(_message.Message):
        __slots__ = ("hlc", "client_id")
        HLC_FIELD_NUMBER: _ClassVar[int]
        CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
        hlc: int
        client_id: str
        def __init__(self, hlc: _Optional[int] = ..., client_id: _Optional[str] = ...) -> None: ...
    class Column(_message.Message):
        __slots__ = ("name", "value", "writer")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        WRITER_FIELD_NUMBER: _ClassVar[int]
        name: str
        value: bytes
        writer: int
        def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ..., writer: _Optional[int] = ...) -> None: ...
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    alive: int
    deleted: int
    writers: _containers.RepeatedCompositeFieldContainer[RowState.Writer]
    columns: _containers.RepeatedCompositeFieldContainer[RowState.Column]
    def __init__(self, alive: _Optional[int] = ..., deleted: _Optional[int] = ..., writers: _Optional[_Iterable[_Union[RowState.Writer, _Mapping]]] = ..., columns: _Optional[_Iterable[_Union[RowState.Column, _Mapping]]] = ...) -> None: ...

class RuleRows(_message.Message):
    __slots__ = ("tables", "rows", "of", "before", "after", "whole")
    class Table(_message.Message):
        __slots__ = ("name", "columns")
        NAME_FIELD_NUMBER: _ClassVar[int]
        COLUMNS_FIELD_NUMBER: _ClassVar[int]
        name: str
        columns: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, name: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    OF_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[RuleRows.Table]
    rows: _containers.RepeatedScalarFieldContainer[bytes]
    of: _containers.RepeatedScalarFieldContainer[int]
    before: _containers.RepeatedScalarFieldContainer[int]
    after: _containers.RepeatedScalarFieldContainer[int]
    whole: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tables: _Optional[_Iterable[_Union[RuleRows.Table, _Mapping]]] = ..., rows: _Optional[_Iterable[bytes]] = ..., of: _Optional[_Iterable[int]] = ..., before: _Optional[_Iterable[int]] = ..., after: _Optional[_Iterable[int]] = ..., whole: _Optional[_Iterable[int]] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("previous", "logged_bytes", "entries", "format")
    class Entry(_message.Message):
        __slots__ = ("stamp", "records", "count", "tables", "rule_rows")
        STAMP_FIELD_NUMBER: _ClassVar[int]
        RECORDS_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        TABLES_FIELD_NUMBER: _ClassVar[int]
        RULE_ROWS_FIELD_NUMBER: _ClassVar[int]
        stamp: int
        records: bytes
        count: int
        tables: _containers.RepeatedScalarFieldContainer[str]
        rule_rows: bytes
        def __init__(self, stamp: _Optional[int] = ..., records: _Optional[bytes] = ..., count: _Optional[int] = ..., tables: _Optional[_Iterable[str]] = ..., rule_rows: _Optional[bytes] = ...) -> None: ...
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    LOGGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    previous: int
    logged_bytes: int
    entries: _containers.RepeatedCompositeFieldContainer[LogChunk.Entry]
    format: int
    def __init__(self, previous: _Optional[int] = ..., logged_bytes: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[LogChunk.Entry, _Mapping]]] = ..., format: _Optional[int] = ...) -> None: ...
