"""Whichever page of a file is damaged or missing, each edit that can still be read is saved.

What can be read is computed from the sound file: SQLite's own ``dbstat`` says which pages are the
outbox's, and each page of an edit bears a mark of it.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from lakesync.client import salvage
from lakesync.client.damaged_file import read_damaged
from lakesync.client.storage.private_files import Key
from tests.client.support.world import World, check_sound, rows_of
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.law("K20")

EDITS: Final = 300
LARGE: Final = 50
"""Every so many edits one that needs pages of its own."""
DAMAGE: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "all bits set": lambda page, _: b"\xff" * len(page),
    "zeros": lambda page, _: bytes(len(page)),
    "noise": lambda page, number: random.Random(number).randbytes(len(page)),
    "its first bytes": lambda page, _: b"\xff" * 512 + page[512:],
}


class Filled:
    """A closed client's file with edits that wait, and on which pages each of them is."""

    def __init__(self, world: World) -> None:
        self.path = world.folder / "a.db"
        client = world.client()
        for place in range(60):
            client.insert("todos", f"t{place}", {"title": f"title {place}" * 10}).unwrap()
        client.sync().unwrap()
        self.ids: dict[str, str] = {}
        for place in range(EDITS):
            mark = f"<{place}>"
            text = mark * (4_000 if place % LARGE == 0 else 60)
            edit = client.update("todos", f"t{place % 60}", {"done": text}).unwrap()
            self.ids[mark] = edit.delta_id
        client.close()
        with closing(sqlite3.connect(self.path)) as file:
            file.execute("VACUUM")  # no page keeps a copy of what was moved to another
        self.content = self.path.read_bytes()
        with closing(sqlite3.connect(self.path)) as file:
            (self.size,) = file.execute("PRAGMA page_size").fetchone()
            pages = "SELECT pageno FROM dbstat WHERE name = '_lakesync_outbox'"
            of_outbox = {number for (number,) in file.execute(pages)}
        self.pages = range(1, len(self.content) // self.size + 1)
        self.pages_of = {
            delta_id: {number for number in of_outbox if mark.encode() in self.page(number)}
            for mark, delta_id in self.ids.items()
        }
        assert all(self.pages_of.values())
        assert max(map(len, self.pages_of.values())) > 3
        assert len(of_outbox) > 30

    def page(self, number: int) -> bytes:
        """Return a page of the sound file."""
        return self.content[(number - 1) * self.size : number * self.size]

    def without(self, pages: set[int]) -> list[str]:
        """Return the edits that are on none of some pages, oldest first."""
        return [one for one in self.ids.values() if not self.pages_of[one] & pages]


@pytest.fixture
def filled(world: World) -> Filled:
    return Filled(world)


def saved_from(path: Path, content: bytes) -> tuple[list[str], bool]:
    """Return the edits that are read of a file, oldest first, and whether they are said to be all.

    A file that was cut or written over is a new one: no page of it may come from a log.
    """
    path.write_bytes(content)
    readable = read_damaged(path, None)
    edits = [one.delta.delta_id for _, (_, one) in sorted(readable.edits.items())]
    return edits, readable.is_complete


def test_salvage_of_a_file_truncated_at_any_page_saves_all_edits_before_the_cut(
    filled: Filled, tmp_path: Path
) -> None:
    for number in some(filled.pages[1:]):
        for more in (0, 1_000):
            end = (number - 1) * filled.size + more
            ids, is_complete = saved_from(tmp_path / "cut.db", filled.content[:end])
            assert ids == filled.without(set(filled.pages[number - 1 :])), number
            assert not is_complete or len(ids) == EDITS


@pytest.mark.parametrize("damage", DAMAGE)
def test_salvage_of_a_file_with_any_page_overwritten_saves_the_edits_of_all_other_pages(
    filled: Filled, tmp_path: Path, damage: str
) -> None:
    for number in some(filled.pages):
        start = (number - 1) * filled.size
        broken = DAMAGE[damage](filled.page(number), number)
        content = filled.content[:start] + broken + filled.content[start + filled.size :]
        ids, is_complete = saved_from(tmp_path / "broken.db", content)
        assert set(filled.without({number})) <= set(ids) <= set(filled.ids.values()), number
        assert not is_complete or len(ids) == EDITS


def test_salvage_of_a_file_with_many_damaged_pages_saves_the_edits_of_all_others(
    filled: Filled, tmp_path: Path
) -> None:
    for seed in range(30):
        dice = random.Random(seed)
        broken = set(dice.sample(filled.pages, dice.choice([2, 5, 20])))
        pages = [
            dice.randbytes(filled.size) if number in broken else filled.page(number)
            for number in filled.pages
        ]
        ids, _ = saved_from(tmp_path / "broken.db", b"".join(pages))
        assert ids == filled.without(broken)


@pytest.mark.parametrize("what", ["cut by a page", "half of it", "its first page"])
def test_a_client_continues_with_salvaged_edits_and_pushes_them(
    world: World, filled: Filled, what: str
) -> None:
    half = len(filled.content) // filled.size // 2
    content, lost = {
        "cut by a page": (filled.content[: -filled.size], {filled.pages[-1]}),
        "half of it": (filled.content[: half * filled.size], set(filled.pages[half:])),
        "its first page": (b"\xff" * filled.size + filled.content[filled.size :], {1}),
    }[what]
    filled.path.write_bytes(content)

    saved = salvage(filled.path).unwrap()

    assert [entry.delta.delta_id for entry in saved.edits] == filled.without(lost)
    client = world.client()
    check_sound(client)
    client.sync().unwrap()
    assert rows_of(client) == world.rows()
    assert {one.delta_id for one in world.deltas()} >= set(filled.without(lost))


def test_salvage_of_a_damaged_write_ahead_log_saves_the_edits_on_its_other_pages(
    world: World,
) -> None:
    """What follows a frame that is not what was written is no longer a log for SQLite."""
    client = world.client()
    client.insert("todos", "t", {"title": "x"}).unwrap()
    client._file.database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    for place in range(EDITS):
        client.insert("todos", f"t{place}", {"title": f"<{place}>" * 30}).unwrap()
    path, copy = world.folder / "a.db", world.folder / "copy.db"
    log = (world.folder / "a.db-wal").read_bytes()
    size = 4_096 + 24
    frames = (len(log) - 32) // size
    assert frames > EDITS
    for frame in (0, frames // 3, frames - 1):
        start = 32 + frame * size
        broken = log[:start] + b"\xff" * size + log[start + size :]
        copy.unlink(missing_ok=True)
        shutil.copyfile(path, copy)
        (world.folder / "copy.db-wal").write_bytes(broken)
        ids, _ = saved_from(copy, path.read_bytes())
        # Each page is there in many versions, so no more is missing than what one page holds.
        assert len(ids) >= EDITS - 20, frame


def test_salvage_does_not_restore_edits_that_had_left_the_outbox(
    world: World, tmp_path: Path
) -> None:
    client = world.client()
    gone = [client.insert("todos", f"t{n}", {"title": "x" * 300}).unwrap() for n in range(100)]
    client.sync().unwrap()
    waiting = [client.insert("todos", f"u{n}", {"title": "y" * 300}).unwrap() for n in range(10)]
    client.close()
    content = (world.folder / "a.db").read_bytes()

    ids, _ = saved_from(tmp_path / "cut.db", content[:-4_096])

    assert not {one.delta_id for one in gone} & set(ids)
    assert set(ids) <= {one.delta_id for one in waiting}


@pytest.mark.law("K31")
def test_salvage_of_an_encrypted_file_saves_the_edits_of_all_undamaged_pages(
    world: World, tmp_path: Path
) -> None:
    key = b"k" * 32
    client = world.client(key=key)
    for place in range(100):
        client.insert("todos", f"t{place}", {"title": f"<{place}>" * 100}).unwrap()
    with client._file.database.reading() as connection:
        (root,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = '_lakesync_outbox'"
        ).fetchone()
    client.close()
    content = (world.folder / "a.db").read_bytes()
    count = len(content) // 4_096
    copy = tmp_path / "broken.db"

    def saved(broken: set[int]) -> int:
        pages = [content[n * 4_096 : (n + 1) * 4_096] for n in range(count)]
        copy.write_bytes(
            b"".join(b"\xff" * 4_096 if n + 1 in broken else page for n, page in enumerate(pages))
        )
        return len(read_damaged(copy, Key(key)).edits)

    assert saved({root}) == 100
    lost = {number: 100 - saved({number}) for number in range(2, count + 1)}
    of_schema = [number for number, edits in lost.items() if edits == 100]
    of_outbox = [number for number, edits in lost.items() if 0 < edits < 100]
    assert len(of_schema) < 4
    assert len(of_outbox) > 10
    assert sum(lost[number] for number in of_outbox) == 100  # each is lost with its page alone
    several = {of_outbox[0], of_outbox[5], of_outbox[-1]}
    assert saved(several) == 100 - sum(lost[number] for number in several)
    copy.write_bytes(content[: -4_096 * 3])
    cut = {count, count - 1, count - 2}
    assert not cut & set(of_schema)
    assert len(read_damaged(copy, Key(key)).edits) == 100 - sum(lost[number] for number in cut)
