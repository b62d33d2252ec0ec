"""Statements, read once where the emulator reads them for every question that it has."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tools.local_stack.bigquery_emulator.shapes import Shape, once_for_a_shape, shape_of
from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    Schema = Mapping[str, Mapping[str, str]]


def read_shapes_once() -> None:
    """Classify and translate once what differs in names only."""
    _replace("bqemulator.jobs.executor", "classify_statement_type", once_for_a_shape)
    _replace("bqemulator.scripting.interpreter", "_is_row_producing", once_for_a_shape)
    _replace("bqemulator.scripting.interpreter", "_dml_targets", _of_names)
    _replace("bqemulator.scripting.parser", "parse_script", _of_statements)
    for module, name in (
        ("bqemulator.sql.rewriter.default_dataset", "qualify_unqualified_tables"),
        ("bqemulator.sql.table_rewriter", "rewrite_table_refs"),
    ):
        _replace(module, name, lambda make: once_for_a_shape(make, Shape.restored))
    _remember_translations()
    _remember_tables()


def look_for_definitions_in_definitions() -> None:
    """Ask only a statement that has the word whether it creates or drops something."""
    sync = "bqemulator.catalog.ddl_sync"
    _replace(sync, "_detect_catalog_drop", _if("DROP", None))
    _replace(sync, "_detect_create_schema", _if("CREATE", None))
    _replace(sync, "_detect_plain_create_table", _if("CREATE", None))
    _replace(sync, "_detect_plain_create_view", _if("CREATE", (None, None)))
    _replace("bqemulator.jobs.routine_ddl", "detect_drop_routine", _if("DROP", None))


def keep_no_earlier_states() -> None:
    """Keep no copies of changed tables for time travel, which LakeSync does not use.

    For the same reason no table is a snapshot that must not be changed.
    """

    async def capture_nothing(*_: Any) -> None:
        pass

    def reject_nothing(*_: Any) -> None:
        pass

    _replace("bqemulator.jobs.executor", "_capture_dml_snapshots", lambda _: capture_nothing)
    _replace("bqemulator.jobs.executor", "_reject_dml_on_immutable", lambda _: reject_nothing)


def filter_no_rows_without_policies() -> None:
    """Read no statement for row access policies and views while there are none."""

    def if_there_are_any(rewrite: Callable[..., str]) -> Callable[..., str]:
        def rewritten(statement: str, *, project_id: str, catalog: Any, **named: Any) -> str:
            if not catalog.list_all_row_access_policies() and not any(
                catalog.list_views(project_id, dataset.dataset_id)
                for dataset in catalog.list_datasets(project_id)
            ):
                return statement
            return rewrite(statement, project_id=project_id, catalog=catalog, **named)

        return rewritten

    _replace(
        "bqemulator.sql.rewriter.row_access_filter", "rewrite_for_row_access", if_there_are_any
    )


def _of_names(make: Callable[..., list[str]]) -> Callable[..., list[str]]:
    return once_for_a_shape(make, lambda shape, names: [*map(shape.restored, names)])


def _of_statements(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Parse a script once for each shape, if it has plain statements only."""
    ast = emulator_module("bqemulator.scripting.ast")

    def plain(statement: str) -> tuple[str, ...]:
        parsed = parse(statement).statements
        if not all(type(one) is ast.SqlStmt for one in parsed):
            raise ValueError(statement)
        return tuple(one.sql for one in parsed)

    def restored(shape: Shape, texts: tuple[str, ...]) -> Any:
        return ast.Script(tuple(ast.SqlStmt(shape.restored(text)) for text in texts))

    parse_plain = once_for_a_shape(plain, restored)

    def parsed(statement: str) -> Any:
        try:
            return parse_plain(statement)
        except ValueError:
            return parse(statement)

    return parsed


def _remember_translations() -> None:
    translator = emulator_module("bqemulator.sql.translator").SQLTranslator
    ok = emulator_module("bqemulator.domain.result").Ok
    original = translator.translate
    kept: dict[Hashable, str] = {}

    def translate(
        self: Any, statement: str, *, schema: Schema | None = None, caller: Any = None
    ) -> Any:
        shape = shape_of(statement)
        if shape is None:
            return original(self, statement, schema=schema, caller=caller)
        shaped = _shaped(shape, schema or {})
        key = (shape.text, repr(shaped), caller)
        if key not in kept:
            made = original(self, shape.text, schema=shaped or None, caller=caller)
            if not isinstance(made, ok):
                return original(self, statement, schema=schema, caller=caller)
            kept[key] = made.value
        return ok(shape.restored(kept[key]))

    translator.translate = translate


def _shaped(shape: Shape, schema: Schema) -> dict[str, dict[str, str]]:
    return {
        shape.place(table): {shape.place(name): kind for name, kind in columns.items()}
        for table, columns in schema.items()
    }


def _remember_tables() -> None:
    """Find the tables of a statement once for each shape; their columns are looked up each time."""
    module = emulator_module("bqemulator.sql.catalog_schema")
    sqlglot = module.sqlglot

    def tables(statement: str) -> list[tuple[str, str, str]]:
        parsed = sqlglot.parse_one(statement, read="bigquery")
        nodes = parsed.find_all(sqlglot.exp.Table)
        return [(node.catalog, node.db, node.name) for node in nodes]

    find = once_for_a_shape(
        tables, lambda shape, names: [tuple(map(shape.restored, one)) for one in names]
    )

    def parse_one(statement: str, **_: str) -> Any:
        nodes = [
            SimpleNamespace(catalog=catalog, db=dataset, name=name)
            for catalog, dataset, name in find(statement)
        ]
        return SimpleNamespace(find_all=lambda _: nodes)

    module.sqlglot = SimpleNamespace(parse_one=parse_one, errors=sqlglot.errors)


def _if(word: str, nothing: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a wrapper that answers ``nothing`` for statements in which a word does not occur."""

    def wrapped(detect: Callable[..., Any]) -> Callable[..., Any]:
        def detected(statement: str, *values: Any) -> Any:
            return detect(statement, *values) if word in statement.upper() else nothing

        return detected

    return wrapped


def _replace(module: str, name: str, wrapped: Callable[[Any], Any]) -> None:
    emulator_module("bqemulator.server")  # which imports the others
    original = getattr(emulator_module(module), name)
    replaced = wrapped(original)
    for one, loaded in list(sys.modules.items()):
        if one.startswith("bqemulator.") and getattr(loaded, name, None) is original:
            setattr(loaded, name, replaced)
