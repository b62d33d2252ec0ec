"""Which catalogue lists Iceberg tables: Glue's, any with Iceberg's REST API, or S3 Tables.

One description for everything that opens tables: the jobs' Spark, PyIceberg in the function of
small batches, the command line, and databases at URLs. The template makes it from its parameters,
as JSON. It contains no secret values: it names a secret of Secrets Manager. Law L21:
``docs/spec/lake.md``.

An opened catalogue (`LakePlace`) has the prefix of the names of its databases. Its errors, those of
PyIceberg, Arrow and boto3, become LakeSync's.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakesync.core.names import flow_database, lake_database
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    Conflict,
    Contention,
    LakeSyncError,
    ValidationFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg.catalog import Catalog

GLUE: Final = "glue"
REST: Final = "rest"
S3_TABLES: Final = "s3tables"
_KINDS: Final = (GLUE, REST, S3_TABLES)
_TABLE_BUCKET: Final = re.compile(
    r"arn:(aws[a-z-]*):s3tables:([a-z0-9-]+):\d{12}:bucket/[a-z0-9-]+"
)
_DOMAINS: Final = {"aws-cn": "amazonaws.com.cn"}
"""For partitions of AWS with another domain."""
_OF_SECRET: Final = frozenset(
    {"token", "credential", "scope", "audience", "resource", "oauth2-server-uri"}
)
"""The settings that a secret may contain, by names that Spark and PyIceberg share; and headers."""
_HEADER: Final = "header."
_REDACTED: Final = "(?i)secret|password|token|credential|access[.]?key|catalog[.].*[.]header[.]"
"""Settings that Spark redacts: its own default does not cover credentials and headers."""


@dataclass(frozen=True, slots=True)
class LakeCatalogue:
    """Where the tables of a stack are listed, and how to reach that catalogue."""

    kind: str = GLUE
    """``glue``, ``rest`` or ``s3tables``."""
    uri: str = ""
    """Of a REST catalogue; S3 Tables has one for each region."""
    warehouse: str = ""
    """Where Glue's tables are, the name in a REST catalogue, or a table bucket's ARN."""
    secret: str = ""
    """The ARN of the secret with a REST catalogue's credentials; empty for none."""
    signing: str = ""
    """The service for which requests are signed with AWS signatures; empty for none."""

    @classmethod
    def from_json(cls, text: str) -> LakeCatalogue:
        """Read a description.

        Raises:
            ValidationFailed: it is malformed, or it can open no table; names every fault.
        """
        try:
            given: Any = json.loads(text)
        except ValueError as error:
            raise ValidationFailed("the description of the lake's catalogue is not JSON") from error
        names = {one.name for one in fields(cls)}
        if not isinstance(given, dict) or not all(
            name in names and isinstance(value, str) for name, value in given.items()
        ):
            raise ValidationFailed(f"the lake's catalogue is described by {sorted(names)}, as text")
        made = cls(**given)
        if faults := list(made._faults()):
            raise ValidationFailed("; ".join(faults))
        return made

    def as_json(self) -> str:
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    @property
    def is_glue(self) -> bool:
        """Whether the Glue Data Catalog lists the tables, and Athena's views beside them."""
        return self.kind == GLUE

    @property
    def deletes_files(self) -> bool:
        """Whether LakeSync may delete unreferenced files; S3 Tables deletes them itself."""
        return self.kind != S3_TABLES

    def read_secret(self, client: Callable[[], Any]) -> dict[str, str]:
        """Return the content of the secret; empty if there is none.

        Args:
            client: gives boto3's client of Secrets Manager; called only if there is a secret.

        Raises:
            ValidationFailed: the secret contains a setting of no catalogue. Its content is not
                repeated.
        """
        if not self.secret:
            return {}
        text: str = client().get_secret_value(SecretId=self.secret)["SecretString"]
        try:
            given: Any = json.loads(text)
        except ValueError:
            given = None
        if not isinstance(given, dict) or not all(isinstance(one, str) for one in given.values()):
            raise ValidationFailed("the secret of the lake's catalogue is a JSON object of texts")
        unknown = sum(name not in _OF_SECRET and not name.startswith(_HEADER) for name in given)
        if unknown:
            raise ValidationFailed(
                f"{unknown} fields of the secret of the lake's catalogue are none of"
                f" {sorted(_OF_SECRET)} and {_HEADER}…"
            )
        return given

    def spark_settings(self, name: str, region: str, secret: Mapping[str, str]) -> dict[str, str]:
        """Return the settings with which Spark knows the catalogue by a name."""
        place = f"spark.sql.catalog.{name}"
        said = {"warehouse": self.warehouse}
        if self.is_glue:
            said |= {
                "catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
                "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            }
        else:
            said |= self._rest(region, secret)
        settings = {f"{place}.{one}": value for one, value in said.items() if value}
        return {place: "org.apache.iceberg.spark.SparkCatalog", **settings} | (
            {"spark.redaction.regex": _REDACTED} if secret else {}
        )

    def python_settings(
        self,
        region: str | None,
        endpoint: str | None,
        secret: Mapping[str, str],
        credentials: tuple[str, str, str | None] | None = None,
    ) -> dict[str, str]:
        """Return the settings with which PyIceberg opens the catalogue.

        Args:
            endpoint: of Glue and S3, if it is not AWS itself.
            credentials: access key, its secret and session token; None for those of the process.
        """
        key, secret_key, token = credentials or ("", "", None)
        said = {
            "client.region": region,
            "client.access-key-id": key,
            "client.secret-access-key": secret_key,
            "client.session-token": token,
            "s3.endpoint": endpoint,
        }
        if self.is_glue:
            said |= {"type": GLUE, "glue.endpoint": endpoint}
        else:
            said |= {"warehouse": self.warehouse, **self._rest(region or "", secret)}
        return {name: value for name, value in said.items() if value}

    def _rest(self, region: str, secret: Mapping[str, str]) -> dict[str, str]:
        """Return the settings of every REST client, in the names that Java and Python share."""
        uri, signing = self.uri, self.signing
        if bucket := _TABLE_BUCKET.fullmatch(self.warehouse) if self.kind == S3_TABLES else None:
            region = bucket[2]
            domain = _DOMAINS.get(bucket[1], "amazonaws.com")
            uri, signing = uri or f"https://s3tables.{region}.{domain}/iceberg", S3_TABLES
        said = {"type": REST, "uri": uri, **secret}
        if self.kind == REST:
            # A catalogue that vends credentials for a table's files is asked for them.
            said = {f"{_HEADER}X-Iceberg-Access-Delegation": "vended-credentials"} | said
        if signing:
            said |= {
                "rest.sigv4-enabled": "true",
                "rest.signing-name": signing,
                "rest.signing-region": region,
            }
        return said

    def _faults(self) -> list[str]:
        faults = []
        if self.kind not in _KINDS:
            faults.append(f"the kind of the lake's catalogue is one of {', '.join(_KINDS)}")
        if self.kind == GLUE and (self.uri or self.secret or self.signing):
            faults.append("Glue's catalogue has no address, secret or signing of its own")
        if self.kind == REST and not self.uri:
            faults.append("a REST catalogue needs its address")
        if self.kind == S3_TABLES and not _TABLE_BUCKET.fullmatch(self.warehouse):
            faults.append("S3 Tables needs the ARN of a table bucket as warehouse")
        if self.kind == S3_TABLES and (self.secret or self.signing):
            faults.append("S3 Tables is asked by the stack's own roles: it has no secret")
        if self.secret and self.signing:
            faults.append("requests are signed, or bear a secret: not both")
        address = urlsplit(self.uri)
        is_address = address.scheme in {"http", "https"} and bool(address.hostname)
        if self.uri and (not is_address or address.username or address.query):
            faults.append("the address of a catalogue is http:// or https://, without a secret")
        elif self.secret and address.scheme != "https":
            faults.append("a secret is sent by https alone")
        return faults


# --- an opened catalogue --------------------------------------------------------------------------


@dataclass(frozen=True)
class LakePlace:
    """A catalogue, opened on first use."""

    open_catalogue: Callable[[], Catalog]
    prefix: str
    """The prefix of the names of databases."""
    warehouse: str = ""
    """Where tables are made; empty if the catalogue decides."""

    @cached_property
    def catalogue(self) -> Catalog:
        """The catalogue.

        Raises:
            LakeSyncError: it cannot be opened.
        """
        with asking():
            return self.open_catalogue()

    def database(self, keeper: str) -> str:
        name = flow_database if "/" in keeper else lake_database
        return name(self.prefix, keeper)

    def made_at(self, database: str, name: str) -> dict[str, Any]:
        """Return the arguments by which PyIceberg places a new table."""
        return {"location": f"{self.warehouse}/{database}/{name}"} if self.warehouse else {}


# --- errors ---------------------------------------------------------------------------------------


_DENIED: Final = ("AccessDenied", "ACCESS_DENIED", "UnrecognizedClient", "InvalidClientToken",
                  "ExpiredToken", "SignatureDoesNotMatch", "InvalidAccessKeyId")  # fmt: skip
_SLOW: Final = ("Throttling", "SlowDown", "TooManyRequests", "RequestLimitExceeded", "SLOW_DOWN")


@contextmanager
def asking() -> Iterator[None]:
    """Yield the errors of the catalogue and of the file store as LakeSync's.

    Raises:
        Contention: another writer was first, or it is not known which was: the table is read again.
        LakeSyncError: any other failure in operation.
    """
    try:
        yield
    except Conflict as error:
        raise Contention("Iceberg: another writer was first; repeat the operation") from error
    except LakeSyncError:
        raise
    except Exception as error:
        known = translated(error)
        if known is None:
            raise
        raise known from error


def translated(error: Exception) -> LakeSyncError | None:
    """Return an error as ours; None for a bug."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - with the others
    from pyiceberg import exceptions as iceberg  # noqa: PLC0415
    from requests import RequestException, Timeout  # noqa: PLC0415

    said = _said(error)
    kinds: dict[type[AdapterFailed | Contention], tuple[type[Exception], ...]] = {
        Contention: (iceberg.CommitFailedException, iceberg.CommitStateUnknownException),
        AdapterRefused: (iceberg.ForbiddenError, iceberg.UnauthorizedError, iceberg.OAuthError,
                         iceberg.BadRequestError),
        AdapterFailed: (iceberg.NoSuchNamespaceError, iceberg.NoSuchTableError),
        AdapterQuotaExceeded: (iceberg.TooManyRequestsError,),
        AdapterTimedOut: (TimeoutError, Timeout),
        AdapterUnreachable: (iceberg.RESTError, ClientError, OSError, BotoCoreError,
                             RequestException),
    }  # fmt: skip
    kind = next((ours for ours, theirs in kinds.items() if isinstance(error, theirs)), None)
    if kind is AdapterUnreachable and any(word in said for word in _DENIED):
        return AdapterRefused(said)
    if kind is AdapterUnreachable and any(word in said for word in _SLOW):
        return AdapterQuotaExceeded(said)
    return None if kind is None else kind(said)


def _said(error: Exception) -> str:
    return f"Iceberg: {' '.join(str(error).split())[:300]}"
