"""Texts that nearly are of a column's type, or spell its values in another way."""

from __future__ import annotations

from itertools import product

from lakesync.core.column_types import TYPES
from lakesync.core.delta import canonical

KINDS = [
    *(kind for kind in TYPES if kind != "decimal"),
    *("decimal(5,2)", "decimal(19,0)", "decimal(38,10)", "decimal(38,38)"),
]

NUMBERS = [
    "0", "12", "-12", "007", "1.", ".5", "1.5", "1.50", "0.10", "999.99", "1000", "1e3", "1E3",
    "0x1F", "1_000", "1,5", "NaN", "Infinity", "12L", "12d", "1f", "--1", "", "-", ".", "0.0000001",
    "9007199254740991", "9007199254740992", "-9007199254740993", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "99999.999", "-0",
    "100000000000000.25", "123456789012345678.0123456789", "0" * 18 + "7", "0" * 19 + "7",
    "9" * 38, "9" * 39, "0." + "3" * 38, "0." + "0" * 15 + "1" * 23, "1." + "0" * 60,
    "\u0661\u0662",
    "\uff11\uff12", "true", "null", "TRUE",
]  # fmt: skip
DAYS = [
    "2024-02-29", "2023-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "10000-01-01", "2024-2-9",
    "20240229", "2024-060", "2024-W09-4", "-2024-02-29", "\u0662024-02-29",
]  # fmt: skip
TIMES = [
    "00:00", "24:00", "23:59:59", "23:59:60", "13:60", "13:05:09.1", "13:05:09.120", "13:05:09.000",
    "13:05:09.000001", "13:05:09.123450", "13:05:09.123456789", "13:05:09.1234567890", "13:05:09,5",
    "1:05", "13", "13:05:09.",
]  # fmt: skip
ZONES = [
    "", "Z", "z", " Z", "+00:00", "-00:00", "+02:00", "-09:30", "+18:00", "-18:01", "+23:59",
    "+24:00", "+05:60", "+0530", "+05", "UTC", "[Europe/Paris]", " CET",
]  # fmt: skip
BASE64 = [
    "AAEC", "AAE", "AAE=", "AAF=", "AB==", "AA==", "AA=", "A===", "====", "=", "AAECAA==AAEC",
    "-_8=", "/+8=", "AA EC", "AAE\u00c9", "A" * 400, "A" * 401,
]  # fmt: skip
AROUND = [
    (" ", ""), ("", " "), ("\t", ""), ("", "\n"), ("+", ""), ("", "\u2028"), ("\u00a0", ""),
    ("", "\x00"), ("\x1f", "\x1f"), ("", "\u0085"), ("\ufeff", ""), ('"', ""), ("\\", ""),
    ("'", "'"),
]  # fmt: skip
PLAIN = [
    "12", "1.5", "2024-02-29", "2024-02-29T13:05:09Z", "2024-02-29T13:05:09+02:00", "AAEC", "true",
]  # fmt: skip
JSON = [
    None, True, False, 0, 12, -12, 1.5, 0.1 + 0.2, 1e15, 1e16, 1e20, 1e21, 1e-6, 1e-7, 5e-324,
    1.7976931348623157e308, 2**53 - 1, 2**53, -(2.0**63), 2.0**63, 9.2e18, 99999.99, 999.999,
    [], {}, [12], ["12"],
    {"12": 12}, [None], "\U0001f600", '\x00\b"\\/', '{"k":"v"}', '"quoted"',
]  # fmt: skip


def hostile() -> list[bytes]:
    """Return texts that nearly are of a type, or spell its values in another way."""
    said = [*NUMBERS, *DAYS, *BASE64]
    said += [f"{day}{join}{time}Z" for day, join, time in product(DAYS, "T ", ["13:05:09"])]
    said += [f"2024-02-29T{time}{zone}" for time, zone in product(TIMES, ZONES)]
    said += [f"{day}T{time}{zone}" for day, time, zone in product(
        ["0001-01-01", "9999-12-31", "1969-12-31"], ["00:00", "23:59:59.999999999"], ZONES,
    )]  # fmt: skip
    said += [f"{before}{each}{behind}" for each in PLAIN for before, behind in AROUND]
    return sorted({canonical(value) for value in [*said, *JSON]})
