"""Our signatures are those of botocore, character for character."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch
from urllib.parse import quote

import pytest
from botocore import credentials as botocore_credentials
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.caller import CONTENT_TYPE, Credentials, RestSigner, Signer

URLS = (
    "https://dynamodb.eu-west-1.amazonaws.com",
    "https://dynamodb.eu-west-1.amazonaws.com:443",
    "http://localhost:8000",
    "http://127.0.0.1:80",
    "https://vpce-1-2.dynamodb.cn-north-1.vpce.amazonaws.com.cn",
)


@pytest.mark.parametrize("url", URLS)
@given(
    body=st.binary(max_size=200),
    token=st.none() | st.from_regex(r"[A-Za-z0-9+/=]{1,40}", fullmatch=True),
    secret=st.from_regex(r"[A-Za-z0-9+/]{40}", fullmatch=True),
    seconds=st.integers(1_600_000_000, 1_900_000_000),
)
def test_signature_equals_that_of_botocore(
    url: str, body: bytes, token: str | None, secret: str, seconds: int
) -> None:
    now = datetime.fromtimestamp(seconds, UTC)
    target = "DynamoDB_20120810.TransactWriteItems"
    request = AWSRequest(
        method="POST",
        url=f"{url}/",
        data=body,
        headers={"Content-Type": CONTENT_TYPE, "X-Amz-Target": target},
    )
    credentials = botocore_credentials.Credentials("AKIDEXAMPLE", secret, token)
    with patch("botocore.auth.get_current_datetime", return_value=now.replace(tzinfo=None)):
        SigV4Auth(credentials, "dynamodb", "eu-west-1").add_auth(request)

    signer = Signer(url, "dynamodb", "eu-west-1")
    mine = signer.headers(
        target, body, Credentials("AKIDEXAMPLE", secret, token), now.strftime("%Y%m%dT%H%M%SZ")
    )

    theirs = dict(request.headers.items())
    assert mine["Authorization"] == theirs["Authorization"]
    assert mine.pop("Host")
    assert mine == theirs


@given(
    name=st.from_regex(r"[A-Za-z0-9+/=_-]{1,20}", fullmatch=True),
    method=st.sampled_from(["POST", "DELETE"]),
    body=st.binary(max_size=200),
    token=st.none() | st.from_regex(r"[A-Za-z0-9+/=]{1,40}", fullmatch=True),
    seconds=st.integers(1_600_000_000, 1_900_000_000),
)
def test_signature_of_a_path_equals_that_of_botocore(
    name: str, method: str, body: bytes, token: str | None, seconds: int
) -> None:
    now = datetime.fromtimestamp(seconds, UTC)
    host, path = "a1.execute-api.eu-west-1.amazonaws.com", f"/live/@connections/{quote(name, '')}"
    request = AWSRequest(method=method, url=f"https://{host}{path}", data=body)
    signing = botocore_credentials.Credentials("AKIDEXAMPLE", "secret", token)
    with patch("botocore.auth.get_current_datetime", return_value=now.replace(tzinfo=None)):
        SigV4Auth(signing, "execute-api", "eu-west-1").add_auth(request)

    mine = RestSigner(host, "execute-api", "eu-west-1").headers(
        method,
        path,
        body,
        Credentials("AKIDEXAMPLE", "secret", token),
        now.strftime("%Y%m%dT%H%M%SZ"),
    )

    assert mine.pop("Host") == host
    assert mine == dict(request.headers.items())
