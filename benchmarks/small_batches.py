"""A small batch into the lake without Spark: a cold process, an emulator's S3 and Glue catalogue.

The process is what a cold start of the function is: Python, imports, clients, then the work. The
tables hold `ROWS` rows; the batch changes some, deletes some and adds some. The price is that of
the function's memory for so long, of its calls of S3, and of the request.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import boto3
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from benchmarks.entries import at_most, sized
from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import state_of
from lakesync.core.names import lake_database, staged_column
from lakesync.core.schema import Column, TableSchema
from lakesync.maintenance.flush import Batch
from lakesync.materialise.iceberg_table import IcebergTable
from lakesync.materialise.lake_rows import row_of
from lakesync.materialise.lake_schema import (
    CHANGES_TABLE,
    COLUMNS,
    COMMIT,
    EPOCH,
    KIND,
    STACK,
    STATE_TABLE,
    WRITTEN,
    LakeColumn,
)
from lakesync.ports import BatchRow
from tools.local_stack.aws_emulator import start_emulator

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from lakesync.core.delta import Delta
    from lakesync.materialise.lake_schema import Kind
    from tools.local_stack.aws_emulator import Emulator

MEASURES: Final = (
    "layers/lakesync/python/lakesync/adapters/lake",
    "layers/lakesync/python/lakesync/core/deliveries.py",
    "layers/lakesync/python/lakesync/core/merge.py",
    "layers/lakesync/python/lakesync/core/delta.py",
    "layers/lakesync/python/lakesync/maintenance/flush.py",
    "layers/lakesync/python/lakesync/materialise",
    "layers/lakesync/python/lakesync/runtime/materialise.py",
)
ROWS: Final = sized(100_000, 2_000)
DELTAS: Final = sized(1_000, 60)
TRIES: Final = sized(3, 1)
SECONDS_TARGET: Final = 15.0
DOLLARS_TARGET: Final = 0.001
MEMORY_GB: Final = 1769 / 1024
# us-east-1, arm64: docs/architecture.md § Cost.
GB_S_DOLLARS: Final = 0.0000133334
REQUEST_DOLLARS: Final = 0.0000002
WRITES_MAX: Final = 30
"""PUT and LIST of S3: leases, two tables' files, manifests, metadata."""
WRITE_DOLLARS: Final = 0.000005
BUCKET: Final = "lake"
GATEWAY: Final = "bench"
TABLE: Final = "orders"
PREFIX: Final = "bench"
STACK_ID: Final = "benchmark"
TYPES: Final = {"customer": "string", "amount": "number", "paid": "boolean", "remark": "string"}
SCHEMA: Final = TableSchema(TABLE, tuple(Column(name, kind) for name, kind in TYPES.items()))
_WALL_MS: Final = 1_700_000_000_000
_COLD: Final = """
import time
began = time.monotonic()
from lakesync.runtime.settings import MaterialiseSettings
from lakesync.runtime import materialise, wiring
taken = materialise.small_batches(wiring.load(MaterialiseSettings)).take(lambda: 30.0)
import json
print(json.dumps([time.monotonic() - began, taken.deltas, taken.left]))
"""


def run() -> list[Entry]:
    """Measure, and give two entries."""
    with start_emulator() as emulator:
        _s3(emulator).create_bucket(Bucket=BUCKET)
        make_tables(emulator)
        seconds = min(measured(emulator, number) for number in range(TRIES))
    price = seconds * MEMORY_GB * GB_S_DOLLARS + REQUEST_DOLLARS + WRITES_MAX * WRITE_DOLLARS
    detail = (
        f"{DELTAS:,} deltas (a third each new, changed and deleted) into {ROWS:,} rows: from a cold"
        f" process to claims deleted, best of {TRIES}; S3 and Glue are an emulator on this machine"
    )
    return [
        at_most("lake_small_batch_s", seconds, "s", SECONDS_TARGET, detail),
        at_most(
            "lake_small_batch_price", 1000 * price, "$ / 1,000", 1000 * DOLLARS_TARGET,
            f"1769 MB for as long, {WRITES_MAX} writes of S3; a run of Glue is 14.7 at the least",
        ),
    ]  # fmt: skip


def measured(emulator: Emulator, number: int) -> float:
    """Stage a batch, and give the seconds that a new process takes to bring it in."""
    put_batch(emulator, number)
    settings = {
        "GLUE_JOB": "none", "RUNS_MAX": "1", "LAKE_BUCKET": BUCKET, "SMALL_BATCH_DELTAS": "10000",
        "DATABASE_PREFIX": PREFIX, "STACK_ID": STACK_ID, "POWERTOOLS_SERVICE_NAME": "bench",
        "MERGE_AFTER_MINUTES": "0", "LAKE_CATALOGUE": '{"kind": "glue"}',
    }  # fmt: skip
    began = time.monotonic()
    answer = subprocess.run(
        [sys.executable, "-c", _COLD],
        env={**os.environ, **emulator.environment(), **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.monotonic() - began
    _, deltas, left = json.loads(answer.stdout)
    if deltas != DELTAS or left:
        raise RuntimeError(f"{deltas} deltas were taken, and {left} left")
    return seconds


def deltas_of(number: int) -> list[Delta]:
    """Return a batch: each third row of its share is new, changed or deleted."""
    make = partial(make_delta, client_id="phone-1", hlc=stamp(_WALL_MS + 1_000 * (number + 1)))
    deltas = []
    for n in range(DELTAS):
        row = f"row-{(n * 97 + number) % ROWS:08}"
        if n % 3 == 0:
            deltas.append(make(Op.INSERT, TABLE, f"new-{number}-{n:05}", values(n)))
        elif n % 3 == 1:
            deltas.append(make(Op.UPDATE, TABLE, row, {"amount": n / 4}))
        else:
            deltas.append(make(Op.DELETE, TABLE, row))
    return deltas


def values(n: int) -> dict[str, object]:
    """Return the columns of a row."""
    return {
        "customer": f"customer {n % 5_000}", "amount": n / 8, "paid": n % 3 == 0,
        "remark": f"remark {n * 7919 % 1_000_003}",
    }  # fmt: skip


def put_batch(emulator: Emulator, number: int) -> None:
    """Write a batch and its claim, as the flush does."""
    after = ROWS + number * DELTAS
    rows = tuple(
        BatchRow(after + 1 + n, 0, d.op.name, d.row_id, d.client_id, d.hlc, d.delta_id, d.columns)
        for n, d in enumerate(deltas_of(number))
    )
    names = {name: staged_column(name) for name in sorted(TYPES)}
    batch = Batch(GATEWAY, TABLE, after, after + DELTAS, rows, names)
    s3 = _s3(emulator)
    body = ParquetEncoder().encode(rows, names)
    s3.put_object(Bucket=BUCKET, Key=batch.object_key, Body=body)
    s3.put_object(Bucket=BUCKET, Key=batch.claim_key, Body=batch.claim(SCHEMA, len(body)).encode())


def _s3(emulator: Emulator) -> Any:
    make: Any = boto3.client
    return make("s3", **emulator.client_options())


# --- the tables, as Spark makes them --------------------------------------------------------------


def make_tables(emulator: Emulator) -> None:
    """Make the state table with its rows, and the changes table with its mark."""
    settings = {
        "glue.endpoint": emulator.endpoint, "s3.endpoint": emulator.endpoint,
        "client.region": emulator.region, "client.access-key-id": "test",
        "client.secret-access-key": "test", "warehouse": f"s3://{BUCKET}/warehouse",
    }  # fmt: skip
    catalogue = load_catalog("lake", type="glue", **settings)
    database = lake_database(PREFIX, GATEWAY)
    catalogue.create_namespace(database)
    columns = [LakeColumn(name, kind, name) for name, kind in TYPES.items()]
    for kind, name in ((CHANGES_TABLE, f"{TABLE}__changes"), (STATE_TABLE, TABLE)):
        schema = schema_of(kind)
        made = catalogue.create_table((database, name), schema, properties=properties_of(kind))
        by_id = {made.schema().find_field(c.name).field_id: (c.type, c.written) for c in columns}
        with made.transaction() as change:
            change.set_properties({COLUMNS: json.dumps(by_id)})
        table = IcebergTable(made.refresh())
        marked = {COMMIT: str(ROWS), EPOCH: "1"}
        rows = table.rows(state_rows(columns) if kind is STATE_TABLE else [])
        table.commit(table.parts(rows), [], marked)


def state_rows(columns: list[LakeColumn]) -> list[dict[str, Any]]:
    """Return the rows that there are."""
    make = partial(make_delta, Op.INSERT, TABLE, client_id="phone-1", hlc=stamp(_WALL_MS))
    now = datetime.now(UTC)
    made = ((f"row-{n:08}", make(f"row-{n:08}", values(n))) for n in range(ROWS))
    return [row_of(row_id, state_of(delta), columns, ROWS, now) for row_id, delta in made]


def properties_of(kind: Kind) -> dict[str, str]:
    """Return what a table says of itself."""
    return {KIND: kind.name, STACK: STACK_ID, WRITTEN: TABLE, "format-version": "2"}


def schema_of(kind: Kind) -> Schema:
    """Return a table's columns."""
    own = {"string": "STRING", "number": "DOUBLE", "boolean": "BOOLEAN"}
    declared = {**kind.head, **{n: own[t] for n, t in TYPES.items()}, **kind.tail}
    comments = {name: LakeColumn(name, of, name).comment for name, of in TYPES.items()}
    fields = [
        NestedField(place, name, _type(sql, 100 + 10 * place), doc=comments.get(name))
        for place, (name, sql) in enumerate(declared.items(), 1)
    ]
    return Schema(*fields)


def _type(sql: str, free: int) -> IcebergType:
    if sql.startswith("ARRAY"):
        return ListType(free, StringType(), element_required=False)
    if sql.startswith("MAP"):
        return MapType(free, StringType(), free + 1, StringType(), value_required=False)
    plain = {
        "STRING": StringType(), "BIGINT": LongType(), "INT": IntegerType(), "DOUBLE": DoubleType(),
        "BOOLEAN": BooleanType(), "TIMESTAMP": TimestamptzType(),
    }  # fmt: skip
    return plain[sql]
