"""What describes the lake's catalogue: what Spark and PyIceberg are told, what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from lakesync.errors import ValidationFailed
from lakesync.materialise.lake_catalogue import LakeCatalogue
from tests.support.catalogue_server import door_to
from tools.local_stack.iceberg_rest import start_iceberg_rest

if TYPE_CHECKING:
    from pathlib import Path

REGION = "eu-central-1"
BUCKET = "arn:aws:s3tables:us-west-2:123456789012:bucket/lake"
SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:catalogue-a1b2c3"
SPARK = "org.apache.iceberg.spark.SparkCatalog"


class Keeper:
    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[str] = []

    def get_secret_value(self, **given: str) -> dict[str, str]:
        self.asked.append(given["SecretId"])
        return {"SecretString": self.text}


def described(**given: str) -> LakeCatalogue:
    return LakeCatalogue.from_json(json.dumps(given))


def settings_of(catalogue: LakeCatalogue, **secret: str) -> dict[str, str]:
    """Return what Spark is told, without what all names begin with."""
    settings = catalogue.spark_settings("lake", REGION, secret)
    assert settings.pop("spark.sql.catalog.lake") == SPARK
    return {name.removeprefix("spark.sql.catalog.lake."): v for name, v in settings.items()}


def test_default_glue_catalogue_keeps_its_settings() -> None:
    catalogue = described(kind="glue", warehouse="s3://b/warehouse", uri="", secret="", signing="")

    assert catalogue.is_glue
    assert settings_of(catalogue) == {
        "catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "warehouse": "s3://b/warehouse",
    }
    assert catalogue.python_settings(REGION, "http://e", {}, ("k", "s", None)) == {
        "type": "glue", "client.region": REGION, "glue.endpoint": "http://e",
        "s3.endpoint": "http://e", "client.access-key-id": "k", "client.secret-access-key": "s",
    }  # fmt: skip


@pytest.mark.law("L21")
def test_spark_and_pyiceberg_get_the_same_settings_for_a_rest_catalogue() -> None:
    catalogue = described(kind="rest", uri="https://c/api", warehouse="w", secret=SECRET)
    said = {
        "type": "rest", "uri": "https://c/api", "warehouse": "w", "credential": "me:mine",
        "scope": "ALL", "header.X-Iceberg-Access-Delegation": "vended-credentials",
    }  # fmt: skip
    secret = catalogue.read_secret(lambda: Keeper('{"credential": "me:mine", "scope": "ALL"}'))
    spark = settings_of(catalogue, **secret)

    assert "mine" not in catalogue.as_json()
    assert "credential" in spark.pop("spark.redaction.regex")
    assert spark == said
    assert catalogue.python_settings(REGION, None, secret) == said | {"client.region": REGION}


@pytest.mark.law("L21")
def test_s3_tables_requests_are_signed_for_the_region_of_the_table_bucket() -> None:
    catalogue = described(kind="s3tables", warehouse=BUCKET)
    said = {
        "type": "rest", "uri": "https://s3tables.us-west-2.amazonaws.com/iceberg",
        "warehouse": BUCKET, "rest.sigv4-enabled": "true", "rest.signing-name": "s3tables",
        "rest.signing-region": "us-west-2",
    }  # fmt: skip

    assert settings_of(catalogue) == said
    assert catalogue.python_settings(REGION, None, {}) == said | {"client.region": REGION}
    assert not catalogue.deletes_files
    china = described(kind="s3tables", warehouse=BUCKET.replace("arn:aws:", "arn:aws-cn:"))
    assert settings_of(china)["uri"] == "https://s3tables.us-west-2.amazonaws.com.cn/iceberg"


@pytest.mark.emulator
@pytest.mark.law("L21")
def test_pyiceberg_requests_are_signed_as_s3_tables_requires(tmp_path: Path) -> None:
    with start_iceberg_rest(tmp_path) as server, door_to(server, "AWS4-HMAC-SHA256") as door:
        catalogue = described(kind="s3tables", uri=door.address, warehouse=BUCKET)
        given = catalogue.python_settings(REGION, None, {}, ("AKIDEXAMPLE", "secret", "token"))
        opened = load_catalog("lake", **given)
        opened.create_namespace("ls_g1")

        assert opened.list_namespaces() == [("ls_g1",)]
    scope = door.asked["authorization"].split()[1].split("/")
    assert (scope[0], *scope[2:]) == (
        "Credential=AKIDEXAMPLE", "us-west-2", "s3tables", "aws4_request,",
    )  # fmt: skip
    assert door.asked["x-amz-security-token"] == "token"
    assert door.sent_away == 0


def test_requests_to_other_catalogues_are_signed_for_the_region_of_the_stack() -> None:
    catalogue = described(kind="rest", uri="https://glue.x.amazonaws.com/iceberg", signing="glue")

    assert settings_of(catalogue)["rest.signing-name"] == "glue"
    assert settings_of(catalogue)["rest.signing-region"] == REGION


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"kind": "hive"}, "is one of glue, rest, s3tables"),
        ({"kind": "glue", "uri": "https://c"}, "Glue's catalogue has no address"),
        ({"kind": "rest"}, "needs its address"),
        ({"kind": "rest", "uri": "ftp://c"}, "http:// or https://"),
        ({"kind": "rest", "uri": "https://me:mine@c"}, "without a secret"),
        ({"kind": "rest", "uri": "http://c", "secret": SECRET}, "by https alone"),
        ({"kind": "rest", "uri": "https://c", "secret": SECRET, "signing": "glue"}, "not both"),
        ({"kind": "s3tables", "warehouse": "s3://b"}, "the ARN of a table bucket"),
        ({"kind": "s3tables", "warehouse": BUCKET, "secret": SECRET}, "has no secret"),
        ({"kind": "rest", "uri": 7}, "as text"),
        ({"kind": "rest", "address": "https://c"}, "as text"),
    ],
)
def test_invalid_catalogue_description_is_refused_with_a_reason(
    given: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValidationFailed, match=fault):
        LakeCatalogue.from_json(json.dumps(given))


def test_all_faults_of_a_catalogue_description_are_reported_at_once() -> None:
    with pytest.raises(ValidationFailed) as refused:
        described(kind="s3tables", uri="ftp://c", secret=SECRET)
    assert str(refused.value).count(";") == 2
    for text in ("", "[]", "null", "{"):
        with pytest.raises(ValidationFailed):
            LakeCatalogue.from_json(text)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '"t0p-s3cret"', '{"token": 7}', '{"t0p-s3cret": "x"}', '{"uri": "https://e"}'],
)
def test_invalid_catalogue_secret_is_refused_without_revealing_it(text: str) -> None:
    keeper = Keeper(text)
    with pytest.raises(ValidationFailed, match="secret of the lake's catalogue") as refused:
        described(kind="rest", uri="https://c", secret=SECRET).read_secret(lambda: keeper)

    assert "s3cret" not in str(refused.value)
    assert keeper.asked == [SECRET]


def test_catalogue_without_a_secret_reads_none() -> None:
    def nobody() -> Any:
        raise AssertionError("there is nothing to ask for")

    assert described(kind="rest", uri="http://c").read_secret(nobody) == {}


def test_catalogue_description_is_unchanged_after_encoding_and_decoding() -> None:
    for catalogue in (LakeCatalogue(), described(kind="s3tables", warehouse=BUCKET)):
        assert LakeCatalogue.from_json(catalogue.as_json()) == catalogue
