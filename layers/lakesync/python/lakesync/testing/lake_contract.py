"""What every object store promises, as tests: inherit `LakeContract`, and give it an empty bucket.

::

    class TestMine(LakeContract):
        @pytest.fixture
        def lake(self) -> LakeAdapter: ...

pytest collects the inherited tests. Which promises they are: `lakesync.adapters.lake.adapter`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest

from lakesync.adapters.lake.adapter import KEY_BYTES_MAX, PAGE_KEYS_MAX
from lakesync.errors import NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.adapters.lake.adapter import LakeAdapter

_KEYS: Final = ("a", "a/b", "a b", "é", "\uffee", "\U0001f600", "b=1/x.parquet", "B", "a.", "aa")


def check_pages(lake: LakeAdapter, names: Iterable[str], size: int) -> None:
    """Store objects of some names beside another, read them page by page, and remove them."""
    keys = [f"p/{name}" for name in names]
    for key in keys:
        lake.put_object(key, key.encode(), "text/plain")
    lake.put_object("q", b"", "text/plain")
    after, listed = "", list[str]()
    while True:
        page = lake.list_page("p/", after, size)
        assert len(page.objects) <= size
        listed += [head.key for head in page.objects]
        if not page.has_more:
            break
        after = listed[-1]

    assert listed == sorted(keys, key=str.encode)
    assert lake.list_objects("p/") == listed
    lake.delete_objects(listed)
    assert lake.list_page("").objects[0].key == "q"
    assert lake.list_objects("p/") == []


class LakeContract:
    """The promises. A subclass has the fixture ``lake``."""

    def test_an_object_comes_back_and_storing_it_again_changes_nothing(
        self, lake: LakeAdapter
    ) -> None:
        """Whole, in part, and what is known of it."""
        key = "g/é =.parquet"
        for _ in range(2):
            lake.put_object(key, b"\x00bytes", "application/x")
        head = lake.head_object(key)

        assert lake.get_object(key) == b"\x00bytes"
        assert lake.get_range(key, 1, 3) == b"byt"
        assert (head.key, head.size_bytes) == (key, 6)
        assert head.modified_at.tzinfo is not None
        lake.put_object(key, b"other", "application/x")
        assert lake.head_object(key).etag != head.etag
        assert lake.get_object(key) == b"other"

    def test_what_is_not_there_is_not_found_and_can_be_removed(self, lake: LakeAdapter) -> None:
        """Removing is safe to repeat."""
        for ask in (lake.get_object, lake.head_object, lambda key: lake.get_range(key, 0, 1)):
            with pytest.raises(NotFound):
                ask("nowhere")
        lake.delete_object("nowhere")
        lake.delete_objects(["nowhere", "neither"])
        lake.put_object("once", b"", "text/plain")
        lake.delete_object("once")
        with pytest.raises(NotFound):
            lake.get_object("once")

    def test_a_new_object_is_written_over_nothing(self, lake: LakeAdapter) -> None:
        """Until what is there is removed."""
        assert lake.put_new_object("claim", b"first", "text/plain")
        assert not lake.put_new_object("claim", b"second", "text/plain")
        assert lake.get_object("claim") == b"first"
        lake.delete_object("claim")
        assert lake.put_new_object("claim", b"third", "text/plain")

    def test_of_many_at_once_one_stores_a_new_object(self, lake: LakeAdapter) -> None:
        """And knows that it was he."""

        def store(number: int) -> bool:
            return lake.put_new_object("claim", b"%d" % number, "text/plain")

        with ThreadPoolExecutor(4) as threads:
            stored = list(threads.map(store, range(8)))

        assert stored.count(True) == 1
        assert lake.get_object("claim") == b"%d" % stored.index(True)

    @pytest.mark.parametrize("size", [1, 3, len(_KEYS)])
    def test_pages_give_each_key_once_in_the_order_of_its_bytes(
        self, lake: LakeAdapter, size: int
    ) -> None:
        """Those under the prefix, and no others."""
        check_pages(lake, _KEYS, size)

    @pytest.mark.parametrize("keys_max", [0, PAGE_KEYS_MAX + 1])
    def test_a_page_that_is_none_is_refused(self, lake: LakeAdapter, keys_max: int) -> None:
        """Before anything is asked for."""
        with pytest.raises(ValidationFailed, match=str(PAGE_KEYS_MAX)):
            lake.list_page("", "", keys_max)

    @pytest.mark.parametrize("key", ["", "é" * (KEY_BYTES_MAX // 2) + "x"], ids=["empty", "long"])
    def test_a_key_that_is_none_is_refused(self, lake: LakeAdapter, key: str) -> None:
        """Before anything is stored."""
        for put in (lake.put_object, lake.put_new_object):
            with pytest.raises(ValidationFailed, match="key"):
                put(key, b"", "text/plain")
