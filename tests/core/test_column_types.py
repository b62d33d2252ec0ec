"""lakesync.core.column_types: which values are of a type, and which types widen."""

from __future__ import annotations

import pytest

from lakesync.core.column_types import TYPES, fits, precision_scale, widens
from lakesync.core.delta import canonical
from lakesync.errors import SchemaMismatch

FIT: dict[str, list[object]] = {
    "string": ["", "x", "2013-01-01"],
    "number": [0, -1, 1.5, 1e300, 2**53 - 1],
    "boolean": [True, False],
    "json": [{}, [], "x", 1, True],
    "null": [],
    "integer": [0, -1, 2**53 - 1, str(2**63 - 1), str(-(2**63)), 1.0, "0", "-7"],
    "decimal(5,2)": [0, 1.25, -999.99, "999.99", "0.10", "-0.5", "00012.50"],
    "decimal(38,0)": ["9" * 38],
    "timestamp": [
        "2013-01-01T05:00:00Z",
        "2013-01-01T05:00",
        "2013-01-01 05:00:00.123456789+01:00",
        "2016-02-29T23:59:59.5-09:30",
        "2013-01-01T05:00:00-23:59",
    ],
    "date": ["2013-01-01", "2016-02-29"],
    "bytes": ["", "AAEC", "/+8="],
}

MISS: dict[str, list[object]] = {
    "string": [1, True, [], {}],
    "number": ["1", True, [], {}],
    "boolean": ["true", 1, 0],
    "json": [],
    "null": [0, False, "", "null"],
    "integer": [
        1.5,
        1e21,
        "",
        "-",
        "1.0",
        "x",
        "1e3",
        str(2**63),
        "\u0661",
        True,
        "007",
        "-07",
        "00",
        "-0",
    ],
    "decimal(5,2)": [1000, 0.125, "1000.00", "1e2", ".5", "5.", "", "x", "\u0661", 1e-7, True],
    "decimal(38,0)": ["9" * 39, "0.5"],
    "timestamp": [
        "2013-01-01",
        "20130101T0500",
        "2013-W01-1T05:00",
        "2013-02-30T00:00:00Z",
        "2013-01-01T25:00:00Z",
        "2013-01-01T05:00:00 Z",
        "2013-01-01T05:00:00,5Z",
        "\u0662013-01-01T05:00:00Z",
        "2013-01-01T24:00:00Z",
        "2013-01-01T05:00:00+05:60",
        "2013-01-01T05:00:00+24:00",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "0000-01-01T00:00:00Z",
        1357016400,
    ],
    "date": [
        "20130101",
        "2013-W01-1",
        "2013-02-29",
        "2013-1-1",
        "2013-01-01T00:00",
        15706,
        "",
        "0000-01-01",
    ],
    "bytes": ["AAE", "A A=", "AA EC", "AAEC\n", "\u00e9", "-_8=", 7],
}


def cases(table: dict[str, list[object]]) -> list[tuple[str, object]]:
    """Return each value with its type."""
    return [(kind, value) for kind, values in table.items() for value in values]


@pytest.mark.law("S1")
@pytest.mark.parametrize(("kind", "value"), cases(FIT))
def test_example_value_fits_its_type(kind: str, value: object) -> None:
    assert fits(kind, canonical(value))


@pytest.mark.law("S1")
@pytest.mark.parametrize(("kind", "value"), cases(MISS))
def test_value_of_another_type_does_not_fit(kind: str, value: object) -> None:
    assert not fits(kind, canonical(value))


def test_every_type_has_examples_that_fit_and_that_do_not() -> None:
    assert {kind.split("(")[0] for kind in FIT} == set(TYPES) == {k.split("(")[0] for k in MISS}


@pytest.mark.law("S1")
@pytest.mark.parametrize(
    ("kind", "digits"),
    [("decimal(1,0)", (1, 0)), ("decimal(38,38)", (38, 38)), ("string", None), ("null", None)],
)
def test_precision_and_scale_of_decimals_are_parsed(
    kind: str, digits: tuple[int, int] | None
) -> None:
    assert precision_scale(kind) == digits


@pytest.mark.law("S1")
@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text",
        "STRING",
        "decimal",
        "decimal()",
        "decimal(5)",
        "decimal(0,0)",
        "decimal(39,0)",
        "decimal(5,6)",
        "decimal(-5,2)",
        "decimal(5, 2)",
        "decimal(\u0665,\u0662)",
    ],
)
def test_invalid_type_is_refused(kind: str) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        precision_scale(kind)

    assert refused.value.field == "columns.type"


ONE_OF_EACH = [kind for kind in TYPES if kind != "decimal"] + [
    "decimal(5,2)",
    "decimal(7,2)",
    "decimal(7,3)",
]

WIDER = {("decimal(5,2)", "decimal(7,2)")}


@pytest.mark.law("S3")
@pytest.mark.parametrize("wanted", ONE_OF_EACH)
@pytest.mark.parametrize("declared", ONE_OF_EACH)
def test_types_widen_exactly_as_the_table_lists(declared: str, wanted: str) -> None:
    allowed = declared in {"null", wanted} or (declared, wanted) in WIDER

    assert widens(declared, wanted) == allowed


@pytest.mark.law("S3")
@pytest.mark.parametrize(("kind", "value"), cases(FIT))
def test_value_of_a_type_fits_every_wider_type(kind: str, value: object) -> None:
    for wanted in [*ONE_OF_EACH, "decimal(38,0)", "decimal(38,2)"]:
        if widens(kind, wanted):
            assert fits(wanted, canonical(value))
