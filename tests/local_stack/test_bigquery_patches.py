"""The BigQuery emulator's patches: they still meet it, and statements come out as without them."""

from __future__ import annotations

import json
import subprocess

import pytest

from tools.local_stack import paths
from tools.local_stack.bigquery_emulator.shapes import Shape, once_for_a_shape, shape_of

MERGE = (
    "MERGE `lakesync.{0}` t USING (SELECT row_id, PARSE_JSON(v0) AS v0 FROM (SELECT * FROM "
    "`lakesync.{1}` UNION ALL SELECT * FROM `lakesync.{0}`)) s ON t.row_id = s.row_id "
    "WHEN MATCHED AND s.v0 IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET `n{2}` = s.v0 "
    "WHEN NOT MATCHED THEN INSERT (row_id, `n{2}`) VALUES (s.row_id, s.v0)"
)
STATEMENTS = (
    "SELECT `row_id`, state FROM `lakesync`.`lakesync_rows_{0}` WHERE row_id > @after LIMIT 10",
    "SELECT SUM(n1), `{1}` FROM `lakesync-test.lakesync.{0}` GROUP BY `{1}`",
    "UPDATE `lakesync.{0}` SET mark = IF(writes = 3, CAST({2} AS INT64), ERROR('x')) WHERE TRUE",
    MERGE,
    "CREATE TABLE IF NOT EXISTS `lakesync.{0}` AS SELECT CAST({2} AS INT64) AS mark",
    "BEGIN TRANSACTION;\nDELETE FROM `lakesync.{0}` WHERE stamp <= {2};\nCOMMIT TRANSACTION;",
    "DECLARE x INT64 DEFAULT {2}; SELECT x FROM `lakesync.{0}`",
)
FILLED = [
    statement.format(*names)
    for statement in STATEMENTS
    for names in (
        ("t1_0ab", "t2_0cd", 1_760_000_000_000_001),
        ("other_7", "T9", 1_760_000_000_000_002),
        ("t2_0cd", "t1_0ab", 12),
        ("same1", "SAME1", 1_234_567_890_123),
    )
]
PROGRAM = """
import json, sys
from tools.local_stack.bigquery_emulator import __main__ as patched, names
from tools.local_stack.emulator.names import emulator_module as module
names.check_names()
statements = json.load(sys.stdin)
def made(statement):
    executor = module("bqemulator.jobs.executor")
    interpreter = module("bqemulator.scripting.interpreter")
    jobs = module("bqemulator.api.routes.jobs")
    placed = {"defaultDataset": {"projectId": "lakesync-test", "datasetId": "lakesync"}}
    whole = jobs._apply_default_dataset(statement, placed, request_project_id="lakesync-test")
    schema = {"t1_0ab": {"row_id": "VARCHAR", "n1": "DECIMAL(38, 9)"}}
    script = executor._parse_script_or_raise(whole)
    translated = executor._translator.translate(whole, schema=schema)
    sql = getattr(translated, "value", "")
    return [
        whole, repr(script), repr(translated), executor.rewrite_table_refs(sql, "lakesync-test"),
        executor.classify_statement_type(whole), interpreter._is_row_producing(whole),
        interpreter._dml_targets(whole, "lakesync-test"),
        repr(executor.sync_dropped_object(whole, "lakesync-test", None)),
    ]
before = [made(statement) for statement in statements]
patched.apply_patches()
after = [made(statement) for statement in statements * 2]
json.dump([before * 2, after], sys.stdout)
"""


@pytest.mark.emulator
def test_patched_statements_give_the_same_results_as_without_patches() -> None:
    answer = subprocess.run(
        [paths.BIGQUERY_PYTHON, "-c", PROGRAM],
        input=json.dumps(FILLED),
        capture_output=True,
        text=True,
        check=False,
        cwd=paths.ROOT,
    )
    assert answer.returncode == 0, answer.stderr
    before, after = json.loads(answer.stdout.splitlines()[-1])
    assert len(before) == 2 * len(FILLED)
    assert after == before


def test_statements_that_differ_in_names_have_the_same_shape() -> None:
    one, other = (shape_of(f"DROP TABLE `d.{name}`, `{name}` /* 10 */") for name in ("a1", "b2"))
    assert one is not None
    assert other is not None
    assert one.text == other.text
    assert one.restored(one.text) == "DROP TABLE `d.a1`, `a1` /* 10 */"
    number = shape_of("SELECT 1234567890123, 12, '1234567890123'")
    assert number is not None
    assert number.names == ("1234567890123",)


@pytest.mark.parametrize(
    "statement", ["SELECT `a1`, `A1`", "SELECT `shape_0_of_names`", "SELECT 9191919191919000"]
)
def test_statements_that_placeholders_would_confuse_have_no_shape(statement: str) -> None:
    assert shape_of(statement) is None


def test_work_is_cached_by_shape_and_errors_name_the_original_statement() -> None:
    asked = []

    def make(statement: str, suffix: str) -> str:
        asked.append(statement)
        if suffix == "!":
            raise ValueError(statement)
        return statement + suffix

    made = once_for_a_shape(make, Shape.restored)
    assert [made(f"`t{n}`", "") for n in range(3)] == ["`t0`", "`t1`", "`t2`"]
    assert made("`t1`", "?") == "`t1`?"
    assert len(asked) == 2
    with pytest.raises(ValueError, match="`t5`"):
        made("`t5`", "!")
