"""Every name of the BigQuery emulator that the patches replace or call, and their check."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from tools.local_stack.emulator.names import EmulatorChangedError, missing_names

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "1.4.0"

NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bqemulator.api.app": (
            "AccessLogMiddleware",
            "CorrelationIdMiddleware",
            "MetricsMiddleware",
        ),
        "bqemulator.catalog.ddl_sync": (
            "_detect_catalog_drop",
            "_detect_create_schema",
            "_detect_plain_create_table",
            "_detect_plain_create_view",
        ),
        "bqemulator.catalog.memory_repository": (
            "MemoryCatalogRepository.list_all_row_access_policies",
            "MemoryCatalogRepository.list_datasets",
            "MemoryCatalogRepository.list_views",
        ),
        "bqemulator.cli": ("main",),
        "bqemulator.domain.result": ("Ok",),
        "bqemulator.jobs.executor": (
            "_capture_dml_snapshots",
            "_reject_dml_on_immutable",
            "classify_statement_type",
        ),
        "bqemulator.jobs.routine_ddl": ("detect_drop_routine",),
        "bqemulator.scripting.ast": ("Script", "SqlStmt"),
        "bqemulator.scripting.interpreter": ("_dml_targets", "_is_row_producing"),
        "bqemulator.scripting.parser": ("parse_script",),
        "bqemulator.sql.catalog_schema": ("build_catalog_schema", "sqlglot"),
        "bqemulator.sql.rewriter.default_dataset": ("qualify_unqualified_tables",),
        "bqemulator.sql.rewriter.row_access_filter": ("rewrite_for_row_access",),
        "bqemulator.sql.table_rewriter": ("rewrite_table_refs",),
        "bqemulator.sql.translator": ("SQLTranslator.translate",),
        "fastapi.routing": ("run_in_threadpool",),
        "fastapi.dependencies.utils": ("run_in_threadpool",),
    }
)


def check_names() -> None:
    """Refuse an emulator that lacks a patched name.

    Raises:
        EmulatorChangedError: with the names, and what to do.
    """
    missing = missing_names(listed=NAMES)
    if missing:
        raise EmulatorChangedError(
            f"pin bqemulator=={VERSION} in requirements/bigquery.in, or adapt the patches in "
            "tools/local_stack/bigquery_emulator: the installed version has no "
            f"{', '.join(missing)}."
        )
