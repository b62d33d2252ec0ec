"""No change inside alters what others hold on to, unless it is meant and written down."""

from __future__ import annotations

import json

from tests.support.public_face import PATH, changes, public_face


def test_public_interface_is_unchanged_or_the_change_is_recorded() -> None:
    kept = json.loads(PATH.read_text("utf-8"))
    made = json.loads(json.dumps(public_face()))

    assert list(changes(kept, made)) == [], (
        "if this is meant, say it in CHANGELOG.md and run `python -m tests.support.public_face`"
    )


def test_changes_of_the_public_interface_are_detected_at_any_depth() -> None:
    kept = {"python": {"a": {"f": "(x)"}}, "outputs": ["A", "B"], "proofs of laws": {"M1": 2}}

    assert list(changes(kept, kept)) == []
    assert list(changes(kept, {**kept, "outputs": ["B", "C"]})) == [
        "outputs: A is gone",
        "outputs: C is new",
    ]
    assert list(changes(kept, {**kept, "python": {"a": {"f": "(x, y)"}}})) == [
        "python / a / f: (x) is now (x, y)"
    ]
    assert list(changes(kept, {**kept, "proofs of laws": {}})) == [
        "proofs of laws / M1: 2 is now None"
    ]
