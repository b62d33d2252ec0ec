"""Who asks BigQuery: by workload identity federation, without a key in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError

from lakesync.adapters.connect import database_adapter, read_connection
from lakesync.errors import AdapterRefused, ValidationFailed
from lakesync.systems.bigquery.bigquery_jobs import google_client, google_credentials

AUDIENCE = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/aws"
FEDERATED = {
    "type": "external_account",
    "audience": AUDIENCE,
    "subject_token_type": "urn:ietf:params:aws:token-type:aws4_request",
    "token_url": "https://sts.googleapis.com/v1/token",
    "service_account_impersonation_url": (
        "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
        "sync@acme.iam.gserviceaccount.com:generateAccessToken"
    ),
    # What gcloud writes for a virtual machine: a function has no such addresses.
    "credential_source": {
        "environment_id": "aws1",
        "region_url": "http://169.254.169.254/latest/meta-data/placement/availability-zone",
        "url": "http://169.254.169.254/latest/meta-data/iam/security-credentials",
        "regional_cred_verification_url": "https://sts.{region}.amazonaws.com?Action=GetCallerIdentity",
    },
}
URL = "bigquery://acme-prod/sync?location=EU"


@dataclass
class Google:
    """Google's two services, as they answer."""

    asked: list[tuple[str, Any]] = field(default_factory=list)

    def __call__(self, url: str, body: Any = None, **_: Any) -> Any:
        text = body.decode() if isinstance(body, bytes) else body
        self.asked.append((url, text))
        answer = (
            {"access_token": "of-sts", "token_type": "Bearer", "expires_in": 3600}
            if "sts" in url
            else {"accessToken": "of-account", "expireTime": "2100-01-01T00:00:00Z"}
        )
        return type("Answer", (), {"status": 200, "data": json.dumps(answer), "headers": {}})()


@pytest.fixture
def workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """An identity of AWS, as a function has it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFROLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t-of-role")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-of-role")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")


def test_federated_credentials_impersonate_the_service_account(workload: None) -> None:
    google = Google()
    credentials = google_credentials(FEDERATED)
    credentials.refresh(google)

    assert credentials.token == "of-account"
    assert [url.split("/")[2] for url, _ in google.asked] == [
        "sts.googleapis.com", "iamcredentials.googleapis.com",
    ]  # fmt: skip
    sent = parse_qs(google.asked[0][1])
    proof = json.loads(unquote(sent["subject_token"][0]))
    headers = {each["key"].lower(): each["value"] for each in proof["headers"]}
    assert proof["url"].startswith(
        "https://sts.eu-central-1.amazonaws.com?Action=GetCallerIdentity"
    )
    assert headers["x-goog-cloud-target-resource"] == AUDIENCE
    assert "Credential=AKIDOFROLE/" in headers["authorization"]
    assert "s3cr3t-of-role" not in str(google.asked)


def test_missing_aws_identity_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.session.Session.get_credentials", lambda *_: None)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with pytest.raises(RefreshError, match="no identity of AWS"):
        google_credentials(FEDERATED).refresh(Google())


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"type": "authorized_user", "refresh_token": "s3cr3t"},
        {"type": "service_account", "private_key": "s3cr3t", "client_email": "a@b"},
        FEDERATED | {"subject_token_type": "urn:ietf:params:oauth:token-type:jwt"},
        FEDERATED | {"token_url": "http://sts.example"},
        FEDERATED | {"service_account_impersonation_url": "http://iam.example"},
        {name: value for name, value in FEDERATED.items() if name != "audience"},
    ],
)
def test_invalid_credentials_are_refused_and_not_repeated(info: dict[str, Any]) -> None:
    with pytest.raises(AdapterRefused) as refused:
        google_credentials(info)
    assert "create-cred-config" in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


def test_no_token_is_sent_to_a_plain_http_endpoint(workload: None) -> None:
    client = google_client("acme", "", "http://127.0.0.1:9050", FEDERATED)
    assert isinstance(client._credentials, AnonymousCredentials)
    client = google_client("acme", "EU", "https://bigquery.eu.rep.googleapis.com", FEDERATED)
    assert not isinstance(client._credentials, AnonymousCredentials)
    assert client._connection.API_BASE_URL == "https://bigquery.eu.rep.googleapis.com"


def test_connection_secret_is_a_url_or_a_url_with_credentials(workload: None) -> None:
    assert read_connection(f" {URL}\n").kind == "bigquery"
    connection = read_connection(json.dumps({"url": URL, "credentials": FEDERATED}))
    assert (connection.url, connection.credentials) == (URL, FEDERATED)
    database_adapter(connection.url, "acme", connection.credentials).close()
    database_adapter(f"{URL}&endpoint=https://bigquery.eu.rep.googleapis.com", "acme").close()


@pytest.mark.parametrize(
    "text",
    [
        "{", "{}", '{"url": 1}', '{"url": "bigquery://acme-prod/sync", "key": "s3cr3t"}',
        '{"url": "postgresql://u:s3cr3t@h/d", "credentials": {}}',
        '{"url": "bigquery://acme-prod/sync", "credentials": "s3cr3t"}',
    ],
)  # fmt: skip
def test_invalid_connection_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        read_connection(text)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("endpoint", ["ftp://x", "https://a/b", "https://u:p@h", "x"])
def test_endpoint_that_is_not_the_url_of_a_host_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationFailed):
        database_adapter(f"{URL}&endpoint={endpoint}", "acme")
