"""Credentials for BigQuery: an AWS workload by identity federation, or a service account's key.

The configuration of federation is not secret: it states which AWS identity may act as which Google
identity. The AWS identity is proved by a signed request to AWS STS. An endpoint without TLS, which
can only be an emulator, gets no credentials, so no token is sent unencrypted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.auth import aws
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.oauth2 import service_account

from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.auth.credentials import Credentials

SCOPES: Final = ("https://www.googleapis.com/auth/bigquery",)
_AWS: Final = "urn:ietf:params:aws:token-type:aws4_request"
_FORMS: Final = (
    "BigQuery's credentials are what `gcloud iam workload-identity-pools create-cred-config … "
    "--aws` writes, or the key of a service account"
)


def google_client(
    project: str, location: str, endpoint: str, info: Mapping[str, Any] | None
) -> bigquery.Client:
    """Return a client; no request is sent yet, except to find default credentials.

    Args:
        project: the project that runs and pays for the jobs.
        location: the dataset's location, or empty.
        endpoint: the API's address if it is not Google's public one, or empty.
        info: a configuration for `google_credentials`; None for the default credentials.
    """
    credentials: Credentials | None = None
    if endpoint.startswith("http://"):
        credentials = AnonymousCredentials()
    elif info is not None:
        credentials = google_credentials(info)
    return bigquery.Client(
        project=project,
        location=location or None,
        credentials=credentials,
        client_options={"api_endpoint": endpoint} if endpoint else None,
    )


def google_credentials(info: Mapping[str, Any]) -> Credentials:
    """Return the credentials that a configuration describes; no request is sent yet.

    Raises:
        AdapterRefused: the configuration is of an unknown type, or incomplete; the message repeats
            none of its content.
    """
    kind = info.get("type")
    try:
        if kind == "service_account":
            key: Credentials = service_account.Credentials.from_service_account_info(
                info, scopes=SCOPES
            )
            return key
        if kind == "external_account" and info.get("subject_token_type") == _AWS:
            return _federated(info)
    except (ValueError, KeyError, TypeError, auth.GoogleAuthError) as exc:
        raise AdapterRefused(f"{_FORMS}; this one is incomplete") from exc
    raise AdapterRefused(_FORMS)


def _federated(info: Mapping[str, Any]) -> Credentials:
    """Return credentials by federation for this AWS workload."""
    asked = [info["token_url"], info.get("service_account_impersonation_url") or "https://"]
    if not info["audience"] or not all(str(url).startswith("https://") for url in asked):
        raise ValueError("no audience, or an address without TLS")
    named = {name: value for name, value in info.items() if name != "credential_source"}
    federated: Credentials = aws.Credentials.from_info(
        named, scopes=SCOPES, aws_security_credentials_supplier=WorkloadOfAws()
    )
    return federated


class WorkloadOfAws(aws.AwsSecurityCredentialsSupplier):
    """The AWS credentials of a Lambda function or a Glue job, as boto3 finds and renews them."""

    def __init__(self) -> None:
        import botocore.session  # noqa: PLC0415 - the SDK, where it is needed

        self._session: Any = botocore.session.get_session()

    def get_aws_security_credentials(
        self,
        context: Any,  # noqa: ARG002 - Google's interface
        request: Any,  # noqa: ARG002 - Google's interface
    ) -> aws.AwsSecurityCredentials:
        """Return the current AWS keys."""
        identity = self._session.get_credentials()
        if identity is None:
            raise auth.RefreshError("this workload has no identity of AWS", retryable=False)
        keys = identity.get_frozen_credentials()
        return aws.AwsSecurityCredentials(keys.access_key, keys.secret_key, keys.token)

    def get_aws_region(
        self,
        context: Any,  # noqa: ARG002 - Google's interface
        request: Any,  # noqa: ARG002 - Google's interface
    ) -> str:
        """Return the region of the STS endpoint."""
        region = self._session.get_config_variable("region")
        if not region:
            raise auth.RefreshError("set AWS_REGION: this workload has no region", retryable=False)
        return str(region)
