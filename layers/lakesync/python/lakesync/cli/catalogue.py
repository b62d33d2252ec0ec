"""The catalogue that lists a stack's lake tables, opened with the operator's own rights."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.faults import UsageFault
from lakesync.materialise.catalogue import LakeCatalogue

if TYPE_CHECKING:
    from lakesync.cli.aws import Aws
    from lakesync.materialise.glue_views import GlueViews

_OUTPUT: Final = "LakeCatalogue"


def described(aws: Aws) -> LakeCatalogue:
    """Return the stack's catalogue; a stack of an older release has Glue's."""
    text = aws.outputs.get(_OUTPUT)
    return LakeCatalogue.from_json(text) if text else LakeCatalogue()


def open_catalogue(aws: Aws) -> Any:
    """Return it as a catalogue of PyIceberg.

    Raises:
        botocore.exceptions.ClientError: its secret may not be read.
    """
    from pyiceberg.catalog import load_catalog

    catalogue = described(aws)
    secret = catalogue.read_secret(partial(aws.client, "secretsmanager"))
    settings = catalogue.python_settings(aws.region, aws.endpoint, secret, aws.credentials())
    return load_catalog("lake", **settings)


def glue_views(aws: Aws) -> GlueViews:
    """Return Athena's views in the stack's catalogue.

    Raises:
        UsageFault: it is not Glue's, where Athena looks for them.
    """
    from lakesync.materialise.glue_views import GlueViews

    if not described(aws).is_glue:
        raise UsageFault("the lake's catalogue is not Glue's: run the statements where you query")
    return GlueViews(aws.client("glue"))
