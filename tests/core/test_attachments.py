"""References: one spelling, one file; and digests that are taken part by part."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core import attachments
from lakesync.core.attachments import (
    ATTACHMENT_BYTES_MAX,
    PART_BYTES,
    Attachment,
    Digester,
    attachment,
    check_parts,
    checked_reference,
    reference_of,
    references_in,
)
from lakesync.errors import ValidationFailed

hexadecimal = st.text("0123456789abcdef", min_size=64, max_size=64)
files = st.builds(
    attachment,
    hexadecimal.map(lambda text: text[:32]),
    hexadecimal,
    st.integers(0, ATTACHMENT_BYTES_MAX),
    st.from_regex(r"[A-Za-z0-9][a-z0-9+.]{0,40}/[a-z0-9][a-z0-9+.-]{0,40}", fullmatch=True),
)


@pytest.mark.law("G1")
@given(files)
def test_reference_round_trips_and_has_one_spelling(file: Attachment) -> None:
    text = str(file)

    assert reference_of(text) == checked_reference(text) == file
    assert str(checked_reference(text)) == text
    assert len(text) <= attachments.REFERENCE_CHARS_MAX


@pytest.mark.law("G1")
@given(st.one_of(st.text(), st.integers(), st.none(), files.map(lambda file: f"{file} ")))
def test_other_values_are_not_references(value: Any) -> None:
    assert reference_of(value) is None
    with pytest.raises(ValidationFailed):
        checked_reference(value)


KEY, DIGEST = "0" * 32, "a" * 64


@pytest.mark.law("G1")
@pytest.mark.parametrize(
    "text",
    [
        f"attachment:{KEY}:{DIGEST}:01:a/b",
        f"attachment:{KEY}:{DIGEST}:-1:a/b",
        f"attachment:{KEY}:{DIGEST}:{ATTACHMENT_BYTES_MAX + 1}:a/b",
        f"attachment:{KEY}:{DIGEST.upper()}:1:a/b",
        f"attachment:{KEY}:{DIGEST}:1:A/b",
        f"attachment:{KEY}:{DIGEST}:1:a",
        f"attachment:{KEY}:{DIGEST}:1:a/b; charset=utf-8",
        f"attachment:{KEY}:{DIGEST}:1:a/b\n",
        f"attachment:../../{KEY}:{DIGEST}:1:a/b",
        f"attachment:{KEY}:{DIGEST}:\u0661:a/b",
        "attachment:",
    ],
)
def test_other_spellings_of_a_reference_are_not_references(text: str) -> None:
    assert reference_of(text) is None


@given(st.lists(files, max_size=4), st.text())
def test_references_are_found_anywhere_in_a_json_value(known: list[Attachment], text: str) -> None:
    texts = [str(file) for file in known]
    value = {"a": [text, *texts[:2], {"b": texts[2:]}], "c": 7, "d": None}

    assert set(references_in(value)) == set(known)
    assert [*references_in(texts[0] if texts else text)] == known[:1]


@pytest.mark.law("G1")
@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_digest_of_parts_does_not_depend_on_how_content_is_read(
    content: bytes, cuts: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attachments, "PART_BYTES", 8)
        digester, places = Digester(), [0, *sorted(min(cut, len(content)) for cut in cuts)]
        for start, end in zip(places, [*places[1:], len(content)], strict=True):
            digester.update(content[start:end])
        parts = [hashlib.sha256(content[at : at + 8]) for at in range(0, len(content), 8)]
        digests = [part.hexdigest() for part in parts] or [hashlib.sha256().hexdigest()]
        file = attachment(KEY, digester.digest(), digester.size_bytes, "a/b")

        assert digester.part_digests() == tuple(digests)
        assert file.parts == len(digests)
        assert sum(file.part_bytes(n) for n in range(1, file.parts + 1)) == len(content)
        assert check_parts(file, digests) == tuple(digests)
        if file.parts == 1:
            assert file.digest == hashlib.sha256(content).hexdigest()
            assert check_parts(file, []) == tuple(digests)


@pytest.mark.law("G2")
@pytest.mark.parametrize("parts", [[], [DIGEST], [DIGEST] * 3, [DIGEST, 7], [DIGEST, "x"]])
def test_parts_that_do_not_match_the_reference_are_refused(parts: list[object]) -> None:
    with pytest.raises(ValidationFailed, match="parts"):
        check_parts(Attachment(KEY, DIGEST, PART_BYTES + 1, "a/b"), parts)
    with pytest.raises(ValidationFailed, match="parts"):
        check_parts(Attachment(KEY, DIGEST, 3, "a/b"), [*parts, "b" * 64])
