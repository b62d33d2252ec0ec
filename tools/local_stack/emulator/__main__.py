"""Start the patched emulator: `python -m tools.local_stack.emulator [--check]`.

GATEWAY_PORT, BIND_HOST and AUTH are the emulator's own settings; LAKESYNC_STACK_FOLDER is where
Glue runs keep their files and logs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tools.local_stack import paths
from tools.local_stack.emulator import (
    count_patches,
    dynamodb_patches,
    glue_patches,
    http_api_patches,
    iam_patches,
    lambda_patches,
    record_patches,
    request_patches,
    socket_patches,
    template_patches,
)
from tools.local_stack.emulator.glue_runs import GlueSettings
from tools.local_stack.emulator.names import EmulatorChangedError, check_names, emulator_module


def apply_patches(glue: GlueSettings) -> None:
    """Close every gap. Each function says which."""
    request_patches.know_services_without_their_descriptions()
    lambda_patches.bound_versions_by_their_function()
    lambda_patches.take_a_parameters_number_for_a_queues_concurrency()
    lambda_patches.name_errors_by_their_class()
    lambda_patches.answer_without_waiting_for_logs()
    lambda_patches.run_functions_in_lambdas_own_environment()
    lambda_patches.unpack_packages_once()
    glue_patches.run_jobs(glue)
    glue_patches.keep_execution_property()
    glue_patches.let_state_machines_start_jobs()
    http_api_patches.import_http_api_bodies()
    http_api_patches.keep_functions_errors_inside()
    http_api_patches.keep_the_bytes_of_bodies()
    iam_patches.name_glue_resources()
    iam_patches.name_schedules_by_their_group()
    iam_patches.count_every_call_as_encrypted()
    iam_patches.count_batches_as_their_actions()
    iam_patches.ask_once_for_a_transaction()
    iam_patches.parse_once_for_all_questions()
    iam_patches.simulate_with_context()
    dynamodb_patches.evaluate_key_conditions_quickly()
    dynamodb_patches.check_conditions_once()
    dynamodb_patches.recover_tables_of_templates()
    socket_patches.answer_handshakes()
    socket_patches.know_apis_by_their_host()
    socket_patches.authorise_without_identity_sources()
    socket_patches.know_answers_of_templates()
    template_patches.put_in_parameters()
    record_patches.record_calls(glue.folder)
    count_patches.count_what_is_billed()


def main(arguments: list[str]) -> int:
    """Check the names, patch, and serve until stopped; with `--check` end after patching."""
    # Taken out of the environment, because functions inherit what stays in it.
    folder = Path(os.environ.pop("LAKESYNC_STACK_FOLDER", paths.LOCAL))
    glue = GlueSettings(
        folder=folder,
        endpoint=f"http://127.0.0.1:{os.environ.get('GATEWAY_PORT', '4566')}",
    )
    try:
        check_names()
    except EmulatorChangedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    apply_patches(glue)
    if arguments != ["--check"]:
        sys.argv = ["ministack"]
        emulator_module("ministack.app").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
