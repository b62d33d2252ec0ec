"""What a boto3 client of this machine's AWS is made with."""

from __future__ import annotations

from typing import TypedDict

REGION = "us-east-1"


class ClientOptions(TypedDict):
    """Keyword arguments for `boto3.client` and `boto3.resource`."""

    endpoint_url: str
    region_name: str
    aws_access_key_id: str
    aws_secret_access_key: str


def client_options(endpoint: str, region: str = REGION) -> ClientOptions:
    """The options for clients of `endpoint`; the emulators accept any credentials."""
    return {
        "endpoint_url": endpoint,
        "region_name": region,
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
