"""Faults in the JavaScript client: one text of a built module of it is another.

The text has to be there exactly once, or Node.js is not started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation import node
from tests.simulation.deliberate.registry import Deliberate, Replaced, deliberate
from tests.simulation.themes import (
    CLOCKS,
    FINAL_UNRULED,
    FIREWALL,
    HOTEL,
    HOTEL_ROW,
    OMITTED,
    REFUSED_LATE,
    RESTORED,
    RETURNING,
    RULES,
    SET_UP_ANEW,
    SKEWED,
    SOCKETS,
    UNKNOWING,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BY_TRACES: Final[list[Deliberate]] = []
"""Faults that the simulation comes across too rarely: a trace of the vectors notices each."""
IN_NODE: Final[dict[str, Any]] = {"javascript": True}


def replaced(module: str, old: str, new: str, *others: tuple[str, str]) -> list[Replaced]:
    """Return the patch that has a text of a module replaced by another, and so others of it."""
    return [(node, "mutation", node.Mutation(module, ((old, new), *others)))]


def traced(message: str) -> Callable[[Callable[[], list[Replaced]]], None]:
    """Put a fault on the list of those that a trace notices."""

    def add(patches: Callable[[], list[Replaced]]) -> None:
        BY_TRACES.append(Deliberate(patches.__name__, message, patches, IN_NODE))

    return add


# --- the cursor, and pages ------------------------------------------------------------------------


@deliberate("a broadcast is applied over a gap", SOCKETS | IN_NODE)
def js_cursor_over_a_gap() -> list[Replaced]:
    return replaced("sync", "page.previous <= at.cursor && at.cursor < page.first", "true")


@deliberate("a broadcast that comes late moves the cursor back", SOCKETS | IN_NODE)
def js_broadcast_out_of_order() -> list[Replaced]:
    return replaced(
        "sync",
        "at.cursor >= page.cursor)", "at.cursor === page.cursor)",
        ("page.previous <= at.cursor && at.cursor < page.first", "page.previous <= at.cursor"),
    )  # fmt: skip


@deliberate("the client takes every page for the last one", IN_NODE)
def js_has_more_is_ignored() -> list[Replaced]:
    return replaced("messages", "fields.hasMore === true", "false")


@deliberate("a push moves the client's cursor", IN_NODE)
def js_cursor_moves_on_push() -> list[Replaced]:
    return replaced(
        "sync",
        "learnEpoch(work, epoch, receipt.epoch);",
        "learnEpoch(work, epoch, receipt.epoch); "
        "work.set({ cursor: max(work.position.cursor, receipt.serverHlc) });",
    )


@deliberate("the cursor is stored, and its rows are not", IN_NODE)
def js_cursor_before_page() -> list[Replaced]:
    return replaced(
        "storage", "row ? rows.put(stored(key, row, work), key) : rows.delete(key)", "rows.count()"
    )


@deliberate("what the gateway says replaces the edits that wait", IN_NODE)
def js_pages_replace_edits() -> list[Replaced]:
    return replaced(
        "pages",
        "const after = merge(deltas, row.state);",
        "const after = merge(deltas, known(row));",
    )


@deliberate("a page does not reach the base of a row with edits that wait", IN_NODE)
def js_base_without_the_page() -> list[Replaced]:
    return replaced(
        "pages", "waiting ? merge(deltas, row.base) : null", "waiting ? row.base : null"
    )


# --- the outbox -----------------------------------------------------------------------------------


@deliberate("edits leave the outbox when they are sent", IN_NODE)
def js_outbox_cleared_before_answer() -> list[Replaced]:
    return replaced(
        "receipts",
        'move(work, entry, "sent", (status) => ["pending", "unseen", "late"].includes(status));',
        "work.dropEntry(hlcOf(entry));",
    )


@deliberate("an edit is told to be written, and is not on the disk", IN_NODE)
def js_edits_are_not_stored() -> list[Replaced]:
    return replaced(
        "storage",
        'store("outbox", new Map([...writes.outbox].map(([hlc, entry]) => [hex(hlc), entry])));',
        "",
    )


@deliberate("refused edits are thrown away", IN_NODE)
def js_refused_edits_are_dropped() -> list[Replaced]:
    return replaced(
        "receipts",
        'work.putEntry({ ...entry, status: "quarantined", '
        "code: error.code, message: error.message });",
        "work.dropEntry(hlcOf(entry));",
    )


@deliberate("edits that somebody on the way refuses with 403 are thrown away", FIREWALL | IN_NODE)
def js_outbox_dropped_on_403() -> list[Replaced]:
    return replaced(
        "sync",
        "work.putEntry({ ...entry, code: error.code, message: error.message });",
        "work.dropEntry(delta.hlc);",
    )


@deliberate("whoever answers is taken for the gateway", HOTEL | IN_NODE)
def js_anybody_refuses() -> list[Replaced]:
    return replaced(
        "http",
        'fault("NOT_THE_GATEWAY", ', 'fault(status < 500 ? "FORBIDDEN" : "NOT_THE_GATEWAY", ',
    )  # fmt: skip


@deliberate("what was stopped once on its way is never tried again", HOTEL | IN_NODE)
def js_stopped_edits_stay() -> list[Replaced]:
    return replaced(
        "sync", "triesStopped: !(since >= 0 && since < this.stoppedWaitMs)", "triesStopped: false"
    )


@deliberate("a push that is refused as a whole is never cut", FIREWALL | IN_NODE)
def js_whole_refusals_block() -> list[Replaced]:
    return replaced(
        "sync", "yield* this.cut(batch, result.refused, pace);", "throw result.refused;"
    )


@deliberate("a receipt that does not add up is believed", HOTEL | IN_NODE)
def js_receipt_that_does_not_add_up() -> list[Replaced]:
    return replaced(
        "receipts", "if (receipt.accepted !== batch.entries.length - refused.size)", "if (false)"
    )


@traced("an own edit in a page is not taken as accepted")
def js_echo_is_no_acceptance() -> list[Replaced]:
    return replaced(
        "pages", "if (!same(work.entry(delta.hlc), delta.id || deltaId(delta)))", "if (true)"
    )


@deliberate("the edits of one transaction are pushed one by one", IN_NODE)
def js_atomic_group_split() -> list[Replaced]:
    return replaced(
        "sync", "if (last && entry.txn !== null && last[0].txn === entry.txn)", "if (false)"
    )


@deliberate("a discarded edit stays in its row", IN_NODE)
def js_rows_keep_what_was_taken_back() -> list[Replaced]:
    return replaced("edits", "refold(work, new Map([[keyOf(delta), null]]));", "")


# --- stamps ---------------------------------------------------------------------------------------


@deliberate("an edit that is refused for its stamp keeps it", CLOCKS | IN_NODE)
def js_restamp_forgotten() -> list[Replaced]:
    return replaced("receipts", "const hlc = work.now();", "const hlc = entry.delta.hlc;")


@deliberate("edits that are stamped again change their order", CLOCKS | IN_NODE)
def js_stamped_again_in_another_order() -> list[Replaced]:
    return replaced(
        "receipts", "for (const entry of taken) {", "for (const entry of taken.reverse()) {"
    )


@deliberate("the client's clock does not follow what it pulls", SKEWED | IN_NODE)
def js_clock_does_not_follow() -> list[Replaced]:
    return replaced("pages", "work.accepted(min(last, cursor + DRIFT));", "")


@deliberate("an event whose push went unanswered is stamped again", REFUSED_LATE | IN_NODE)
def js_doubtful_events_are_stamped_again() -> list[Replaced]:
    return replaced("state", 'new Set(["sent", "unseen", "late"])', "new Set()")


@traced("what was pulled and is not there is taken for lost on its way")
def js_unseen_is_pending() -> list[Replaced]:
    return replaced("pages", 'entry.status === "sent" ? "unseen" : "pending"', '"pending"')


# --- rules ----------------------------------------------------------------------------------------


@deliberate("an own write that rules hide stays on the device", RULES | IN_NODE)
def js_hidden_write_kept() -> list[Replaced]:
    return replaced("pages", "hidePassed(work, page.cursor);", "")


@deliberate("a row that is removed from sight counts as deleted", RULES | IN_NODE)
def js_remove_is_delete() -> list[Replaced]:
    return replaced(
        "messages", 'op: text(fields, "op"),', 'op: text(fields, "op").replace("REMOVE", "DELETE"),'
    )


@deliberate("rows that rules have removed stay", RULES | IN_NODE)
def js_rows_of_before_stay() -> list[Replaced]:
    return replaced("pages", "refold(work, EMPTY_BASES(old));", "")


@deliberate("columns that rules leave out stay on the device", OMITTED | IN_NODE)
def js_columns_of_before_stay() -> list[Replaced]:
    return replaced("pages", "leaveOut(work, key, new Set(omitted));", "")


# --- other buffers and gateways -------------------------------------------------------------------


@deliberate("a client does not notice that the gateway was restored", RESTORED | IN_NODE)
def js_epoch_not_compared() -> list[Replaced]:
    return replaced("sync", 'at.epoch !== "" && page.epoch !== at.epoch', "false")


@deliberate(
    "what was accepted and is lost with a restored buffer is not offered", RETURNING | IN_NODE
)
def js_base_not_kept_on_resync() -> list[Replaced]:
    return replaced(
        "pages",
        'work.putEntry({ delta, status: "held_back", txn: null, code: "", message: "" });',
        "",
    )


@deliberate("new events are pushed before a restored buffer was read", RETURNING | IN_NODE)
def js_pushes_do_not_wait_for_rebuilds() -> list[Replaced]:
    return replaced("sync", 'if (work.position.mode === "restore")', "if (false)")


@deliberate(
    "a database that is given to another gateway loses the edits that wait", SET_UP_ANEW | IN_NODE
)
def js_no_edit_moves() -> list[Replaced]:
    return replaced("edits", 'keep === "edits" ? entries.filter(isThere) : entries', "entries")


@deliberate("a client does not name the gateway that it belongs to", SET_UP_ANEW | IN_NODE)
def js_no_gateway_is_named() -> list[Replaced]:
    return replaced("messages", "...(push.epoch && { epoch: push.epoch }),", "")


# --- what apps see --------------------------------------------------------------------------------


@deliberate("the row's latest writer has all of its columns", IN_NODE)
def js_merge_by_row_stamp() -> list[Replaced]:
    return replaced(
        "merge",
        "if (greater(write, state.columns.get(name)))",
        "if ([...state.columns.values()].every((other) => greater(write, other)))",
    )


@deliberate("a client lets a late update bring a deleted row back", FINAL_UNRULED | IN_NODE)
def js_deletes_do_not_win() -> list[Replaced]:
    return replaced("merge", "deleteWins && !state.alive && state.columns.size", "false")


@deliberate("nobody is told of a lost write", UNKNOWING | IN_NODE)
def js_lost_writes_are_not_told() -> list[Replaced]:
    return replaced("pages", "lost.keep();", "")


@deliberate("values that were read before the edit count as lost", UNKNOWING | IN_NODE)
def js_what_was_read_is_lost_too() -> list[Replaced]:
    return replaced("conflicts", "equal(other, base) || base?.[2] === other[2]", "false")


@deliberate("who replaced a value that he had never read is not told", UNKNOWING | IN_NODE)
def js_winners_are_not_notified() -> list[Replaced]:
    return replaced("conflicts", "if (!note || note.known)", "if (false)")


@deliberate("of what a row was before an accepted write nothing is noted", UNKNOWING | IN_NODE)
def js_accepted_writes_are_not_noted() -> list[Replaced]:
    return replaced("receipts", "noteShown(work, key, by);", "")


@deliberate("an edit stopped on its way is stamped again with a late event", HOTEL_ROW | IN_NODE)
def js_stopped_edits_are_stamped_again() -> list[Replaced]:
    return replaced("receipts", 'events.size > 0 && entry.code !== ""', "false")


@deliberate("a watch shows rows as they were read when it began", UNKNOWING | IN_NODE)
def js_watches_keep_their_types() -> list[Replaced]:
    return replaced("watch", "if (!question || !this.readsStill(question))", "if (!question)")
