"""The vectors bite: where one place of the core is computed otherwise, some case shows it."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lakesync.core import clock, column_types, delta, merge, rules, visibility
from lakesync.errors import LakeSyncError
from lakesync.wire import json_frames, jsonish
from tests.support.vectors import FOLDER, SUBJECTS, written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Mutation(NamedTuple):
    """A place of the core that is computed otherwise, and the vectors that show it."""

    subject: str
    of: Callable[..., Any]
    text: str
    instead: str


MUTATIONS = [
    Mutation("clock", clock.HybridLogicalClock.now, "self.last + 1", "self.last"),
    Mutation("clock", clock.HybridLogicalClock.now, "max(", "min("),
    Mutation("clock", clock.HybridLogicalClock.observe, "max(self.last, remote)", "remote"),
    Mutation("clock", clock.check_drift, "ahead_ms > drift", "ahead_ms >= drift"),
    Mutation("clock", clock.check_drift, "ahead_ms > drift", "abs(ahead_ms) > drift"),
    Mutation("merge", merge.apply, "if hlc <= deleted", "if hlc < deleted"),
    Mutation("merge", merge.apply, "mine > current", "mine[0] > current[0]"),
    Mutation("merge", merge.apply, "mine > current", "mine[:2] > current[:2]"),
    Mutation("merge", merge.apply, "mine > current", "mine[::2] > current[::2]"),
    Mutation("merge", merge.apply, "return _normal(alive, hlc", "return RowState(alive, hlc"),
    Mutation("merge", merge.apply, "registers and delta.op is Op.INSERT", "registers"),
    Mutation("merge", merge._normal, "alive if alive > deleted else 0", "alive"),
    Mutation("merge", merge._normal, "register[0] > deleted", "register[0] >= deleted"),
    Mutation("merge", merge.as_read, "delete_wins and not state.alive", "not state.alive"),
    Mutation("merge", merge.as_read, "if delete_wins", "if False"),
    Mutation("merge", merge.view, "not state.alive and not", "not"),
    Mutation("canonical", delta._object, 'key.encode("utf-16-be")', "key"),
    Mutation("canonical", delta._arrange, "point <= 21", "point <= 20"),
    Mutation("canonical", delta._arrange, "-6 < point", "-7 < point"),
    Mutation("canonical", delta._number, "value == 0", "value is None"),
    Mutation("canonical", delta._no_duplicates, "len(unique) != len(pairs)", "False"),
    Mutation("canonical", delta._text, "depth >= VALUE", "depth > VALUE"),
    Mutation("canonical", delta._integer, "value <= _EXACT_INT_MAX", "value <= 2 * _EXACT_INT_MAX"),
    Mutation("ids", delta.filled_id, "(*values, hlc,", "(*values, hlc + 1,"),
    Mutation("ids", delta.filled_id, "basestring(row_id)", "basestring(row_id.lower())"),
    Mutation("values", column_types._fits_integer, "int(text) in _INT64", "True"),
    Mutation("values", column_types._fits_decimal, '.lstrip("0")', ""),
    Mutation("values", column_types._fits_decimal, "<= precision - scale", "<= precision"),
    Mutation("values", column_types.timestamp_of, "if moment.tzinfo", "if False"),
    Mutation("values", column_types.date_of, "is None", "is False"),
    Mutation("values", column_types.bytes_of, "validate=True", "validate=False"),
    Mutation("visibility", visibility.Viewer._any_of, "return False", "return True"),
    Mutation("visibility", visibility.Viewer._any_of, "if not test", "if test"),
    Mutation("visibility", visibility.Viewer.sees, "if row is None", "if not row"),
    Mutation("visibility", visibility.Viewer.transition, "ends=after is None", "ends=False"),
    Mutation("visibility", visibility.Viewer._writer, "(before, after)", "(after,)"),
    Mutation("visibility", visibility.Viewer._writer, "(before, after)", "(before,)"),
    Mutation("visibility", visibility.Viewer._writer, "before is None or", "before is None and"),
    Mutation("visibility", visibility.Viewer._digest, "sorted(omitted)", "[]"),
    Mutation("visibility", rules._equal, "in instants", "is None"),
    Mutation("visibility", rules._differs, "is_scalar(value) and", ""),
    Mutation("visibility", rules._ordered, "order(its_key, key)", "order(key, its_key)"),
    Mutation("visibility", rules._forms, "exact is not None", "False"),
    Mutation("wire", jsonish.encode_push, "(push.atomic)", "(not push.atomic)"),
    Mutation("wire", jsonish.encode_page, '"previous":', '"after":'),
    Mutation("wire", json_frames.encode_frame, "request_id is None", "not None"),
]  # fmt: skip


@pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=lambda each: f"{each.of.__name__}: {each.instead or each.text}"
)
def test_vectors_show_each_mutation_of_the_core(mutation: Mutation) -> None:
    with mutated(mutation):
        try:
            made = written(SUBJECTS[mutation.subject])
        except (LakeSyncError, ValueError):  # it cannot compute a case any more
            made = ""
    assert made != stored(mutation.subject)


@cache
def stored(subject: str) -> str:
    return (FOLDER / f"{subject}.json").read_text("utf-8")


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Give a function the code that it has with a part of its text replaced."""
    function = mutation.of
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutation.text) == 1, f"not once in {function.__name__}: {mutation.text}"
    flags = __future__.annotations.compiler_flag
    changed = compile(source.replace(mutation.text, mutation.instead), "mutation", "exec", flags)
    names = dict(function.__globals__)
    exec(changed, names)  # noqa: S102 - the library's own text
    kept = function.__code__
    function.__code__ = names[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = kept
