"""Who asks BigQuery: a workload of AWS by federation, or a service account by its key.

What federation is configured by is no secret: it says which identity of AWS may become which of
Google. The identity is proved by a request to AWS's own STS, signed where this runs.

An endpoint without TLS, which can only be an emulator, is asked without credentials: no token goes
over a wire in the clear.
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
    """Return a client; nothing is asked yet but for what default credentials there are.

    Args:
        project: whose jobs they are.
        location: of the dataset, or empty.
        endpoint: another than Google's, or empty.
        info: as `google_credentials` takes it; None for the default credentials.
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
    """Return credentials by their configuration; nothing is asked yet.

    Raises:
        AdapterRefused: it is none that is known, or not whole; nothing of it is repeated.
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
    """Return the credentials of a workload of AWS; where its own come from is known here."""
    asked = [info["token_url"], info.get("service_account_impersonation_url") or "https://"]
    if not info["audience"] or not all(str(url).startswith("https://") for url in asked):
        raise ValueError("no audience, or an address without TLS")
    named = {name: value for name, value in info.items() if name != "credential_source"}
    federated: Credentials = aws.Credentials.from_info(
        named, scopes=SCOPES, aws_security_credentials_supplier=WorkloadOfAws()
    )
    return federated


class WorkloadOfAws(aws.AwsSecurityCredentialsSupplier):
    """The identity of a Lambda function or a Glue job, by the SDK's own rules, which renew it."""

    def __init__(self) -> None:
        import botocore.session  # noqa: PLC0415 - the SDK, where it is needed

        self._session: Any = botocore.session.get_session()

    def get_aws_security_credentials(
        self,
        context: Any,  # noqa: ARG002 - Google's interface
        request: Any,  # noqa: ARG002 - Google's interface
    ) -> aws.AwsSecurityCredentials:
        """Return the keys of the moment."""
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
        """Return the region whose STS is asked."""
        region = self._session.get_config_variable("region")
        if not region:
            raise auth.RefreshError("set AWS_REGION: this workload has no region", retryable=False)
        return str(region)
