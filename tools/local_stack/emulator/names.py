"""Every name of the emulator that the patches replace or call, and the check that all are there."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERSION = "1.5.33"

NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ministack.app": (
            "AUTH",
            "SERVICE_HANDLERS",
            "_EXECUTE_API_RE",
            "_dispatch_service_request",
            "_handle_pre_body_request",
            "_handle_special_data_plane_request",
            "main",
        ),
        "ministack.core.iam_actions": (
            "dynamodb_transaction_checks",
            "extract_iam_action",
            "extract_resource_arn",
            "json",
        ),
        "ministack.core.iam_evaluator": ("_resolve_condition_key",),
        "ministack.core.lambda_runtime": (
            "Worker",
            "Worker._drain_stderr_bounded",
            "_detect_runtime_binary",
            "zipfile",
        ),
        "ministack.core.responses": (
            "error_response_json",
            "get_account_id",
            "json_response",
        ),
        "ministack.core.router": ("_is_aws_service_name", "extract_access_key_id"),
        "ministack.services.apigateway": (
            "_apis",
            "_authorize_ws_connect",
            "_authorizers",
            "_create_integration_response",
            "_create_route_response",
            "_integration_responses",
            "_integrations",
            "_invoke_lambda_proxy",
            "_invoke_ws_lambda",
            "_route_responses",
            "_routes",
            "_v2_request_body_is_text",
            "handle_connections_api",
            "handle_execute",
            "handle_websocket",
        ),
        "ministack.services.cloudformation.language_extensions": ("apply",),
        "ministack.services.cloudformation.provisioners": (
            "_GLUE_JOB_DEFAULTS",
            "_RESOURCE_HANDLERS",
            "_apigw_v2_authorizer_create",
            "_apigw_v2_integration_create",
            "_apigw_v2_route_create",
        ),
        "ministack.services.dynamodb": (
            "_condition_syntax_error",
            "_evaluate_condition",
            "_pitr_settings",
        ),
        "ministack.services.glue": (
            "_batch_stop_job_run",
            "_create_job",
            "_job_runs",
            "_jobs",
            "_start_job_run",
            "_update_job",
        ),
        "ministack.services.iam": ("_IAM_HANDLERS",),
        "ministack.services.lambda_svc": (
            "_emit_lambda_logs",
            "_execute_function_warm",
            "_functions",
            "_reserved_concurrency",
            "_sqs_esm_concurrency",
            "lambda_execute_result_to_api_proxy_response",
        ),
        "ministack.services.stepfunctions": ("_ExecutionError", "_SERVICE_DISPATCH"),
        "ministack.services.sts": ("_sessions", "register_session"),
    }
)


class EmulatorChangedError(Exception):
    """The installed emulator is not the one that the patches were written for."""


def emulator_module(name: str) -> Any:
    """A module of the emulator, whose names a type checker of this project cannot know."""
    return import_module(name)


def missing_names(
    load: Callable[[str], Any] = import_module,
    listed: Mapping[str, tuple[str, ...]] = NAMES,
) -> list[str]:
    """The listed names that the installed emulator does not have, as `module.name`."""
    missing = []
    for module_name, names in listed.items():
        try:
            module = load(module_name)
        except ImportError:
            missing.append(module_name)
            continue
        missing += [f"{module_name}.{name}" for name in names if not _has(module, name)]
    return missing


def check_names(load: Callable[[str], Any] = import_module) -> None:
    """Refuse an emulator that lacks a patched name.

    Raises:
        EmulatorChangedError: with the names, and what to do.
    """
    missing = missing_names(load)
    if missing:
        raise EmulatorChangedError(
            f"pin ministack=={VERSION} in requirements/emulator.in, or adapt the patches in "
            f"tools/local_stack/emulator: the installed version has no {', '.join(missing)}."
        )


def _has(module: Any, dotted: str) -> bool:
    value = module
    for part in dotted.split("."):
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True
