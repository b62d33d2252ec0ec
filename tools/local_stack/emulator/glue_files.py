"""What a Glue run needs before it starts: its files from S3, and its role's credentials."""

from __future__ import annotations

import secrets
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from tools.local_stack import paths
from tools.local_stack.emulator.glue_command import Credentials, Submission, distribution_name
from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Mapping

_ZIP_OF_WHEELS = ".gluewheels.zip"


class GlueFileError(Exception):
    """A script, a module or a package that the job names is not there, or not for its role."""


def fetch(
    job: Mapping[str, Any], arguments: Mapping[str, str], folder: Path, s3: Any
) -> Submission:
    """Bring the script and its modules from S3 to this disk, as Glue does before a start.

    Args:
        job: The job's definition.
        arguments: Those of the run, over those of the job.
        folder: The run's own, made here.
        s3: A client with the credentials of the job's role: it must be allowed to read them.
    """
    folder.mkdir(parents=True)
    script = _download(s3, job.get("Command", {}).get("ScriptLocation", ""), folder / "script")
    uris = _listed(arguments, "--extra-py-files")
    for module in _listed(arguments, "--additional-python-modules"):
        if not module.startswith("s3://"):
            _require_installed(module)
        elif module.endswith(_ZIP_OF_WHEELS):
            for asked in _asked_by(_download(s3, module, folder / "wheels")):
                _require_installed(asked)
        else:
            uris.append(module)
    files = [_download(s3, uri, folder / "modules") for uri in uris]
    return Submission(script=script, arguments=arguments, folder=folder, python_files=files)


def _listed(arguments: Mapping[str, str], name: str) -> list[str]:
    return [entry.strip() for entry in arguments.get(name, "").split(",") if entry.strip()]


def _download(s3: Any, uri: str, folder: Path) -> Path:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / Path(key).name
    try:
        target.write_bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except (BotoCoreError, ClientError) as error:
        raise GlueFileError(f"Error downloading {uri!r} with the job's role: {error}") from error
    return target


def _asked_by(wheels: Path) -> list[str]:
    with zipfile.ZipFile(wheels) as packed:
        return packed.read("wheels/requirements.txt").decode().split()


def _require_installed(module: str) -> None:
    """Glue installs with pip; here the package must be in the project's environment already."""
    if not any(paths.PACKAGES.glob(f"{distribution_name(module)}-*.dist-info")):
        raise GlueFileError(
            f"add {module!r} to requirements/dev.in: the job asks Glue to install it"
        )


def role_credentials(job: Mapping[str, Any]) -> Credentials:
    """The role's session when the emulator enforces IAM, so that the role is proved sufficient."""
    if not emulator_module("ministack.app").AUTH:
        return Credentials("test", "test")
    account = emulator_module("ministack.core.responses").get_account_id()
    role = str(job.get("Role", "")).rsplit("/", 1)[-1]
    access_key, secret, token = (
        f"ASIA{secrets.token_hex(8).upper()}",
        secrets.token_hex(20),
        secrets.token_hex(32),
    )
    emulator_module("ministack.services.sts").register_session(
        access_key,
        {
            "Arn": f"arn:aws:sts::{account}:assumed-role/{role}/GlueJobRunnerSession",
            "UserId": f"{role}:GlueJobRunnerSession",
            "SecretAccessKey": secret,
            "SessionToken": token,
        },
    )
    return Credentials(access_key, secret, token)
