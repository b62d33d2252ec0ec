/** Receipts: what each delta of a push becomes. Laws K3, K7, K10, K11: docs/spec/client.md. */

import { fault, type LakeSyncError } from "./errors.js";
import { noteShown } from "./conflicts.js";
import { isRuled, noteAccepted, ownStamps } from "./echoes.js";
import { followStamps } from "./edits.js";
import { deltaId, fold as merge, type Delta } from "./merge.js";
import type { Receipt } from "./messages.js";
import { acknowledge, keyOf, refold } from "./rows.js";
import {
  fold,
  IN_DOUBT,
  known,
  same,
  type Entry,
  type Needs,
  type Status,
  type Work,
} from "./state.js";
import { DRIFT_MS_MAX, max, stamp, stampMs, type Stamp } from "./stamp.js";

/** How long a push that was given up may still arrive somewhere. */
const UNDER_WAY_MS_MAX = 120_000;

/** What one push carries; its entries have their statuses from before it. */
export interface Batch {
  readonly entries: readonly Entry[];
  readonly atomic: boolean;
  /** Local transactions and single edits in it. */
  readonly units: number;
  readonly epoch: string;
  /** Its edits were stopped before, by somebody on the way. */
  readonly wasStopped: boolean;
}

/** What became of a batch. */
export interface BatchResult {
  accepted: number;
  quarantined: number;
  /** Why it was refused as a whole; null if it was not. */
  refused: LakeSyncError | null;
  stampedWrong: LakeSyncError | null;
  /** Why some must wait; null if the next batch may leave at once. */
  blocked: LakeSyncError | null;
}

export const noResult = (refused: LakeSyncError | null = null): BatchResult => ({
  accepted: 0,
  quarantined: 0,
  refused,
  stampedWrong: null,
  blocked: null,
});

const isLate = (error: LakeSyncError): boolean => error.code === "OUT_OF_ORDER";
const isDrift = (error: LakeSyncError): boolean => error.code === "CLOCK_DRIFT";
const hlcOf = (entry: Entry): Stamp => entry.delta.hlc;

/** The rows that a receipt concerns: those of the batch, or of all edits if some are stamped again. */
export function needsOfReceipt(work: Work, batch: Batch, receipt: Receipt): Needs {
  const isMoved = receipt.outcomes.some(({ error }) => error && (isLate(error) || isDrift(error)));
  const entries = isMoved ? work.entries() : batch.entries;
  return { keys: entries.map((entry) => keyOf(entry.delta)) };
}

export function applyReceipt(work: Work, batch: Batch, receipt: Receipt): BatchResult {
  const refused = refusals(batch, receipt);
  const result = noResult();
  const accepted: Entry[] = [];
  const late: Entry[] = [];
  const keptBack: Entry[] = [];
  const unsure: Entry[] = [];
  const errors = [...refused].map(([index, error]) => [batch.entries[index]!, error] as const);
  const isDoubtful = errors.some(
    ([entry, error]) =>
      mayBeInFlight(entry, error, receipt.serverTimeMs) || mayBeStored(entry, error),
  );
  batch.entries.forEach((entry, index) => {
    const error = refused.get(index);
    if (!error || (isLate(error) && entry.status === "offered")) {
      accepted.push(entry); // an event of before a restore that is late was stored before
    } else if (entry.status === "lost" && isLate(error)) {
      move(work, entry, "pending", (status) => status === "lost");
      result.stampedWrong ??= error;
    } else if (mayBeStored(entry, error)) {
      unsure.push(entry);
      result.blocked = error;
    } else if (!isDrift(error) && !isLate(error)) {
      sortOut(work, entry, error, receipt.serverHlc, result, keptBack);
    } else if (isDoubtful) {
      result.blocked = error;
      if (entry.status === "pending") keptBack.push(entry);
    } else {
      late.push(entry);
      if (!result.stampedWrong || !isDrift(result.stampedWrong)) result.stampedWrong = error;
    }
  });
  acknowledgeAll(work, accepted, receipt.serverHlc);
  result.accepted = accepted.length;
  markPending(work, [...keptBack, ...late]);
  for (const entry of unsure) move(work, entry, "late", (status) => status === "sent");
  if (late.length) restamp(work, batch, late, isDrift(result.stampedWrong!), receipt.serverTimeMs);
  return result;
}

function refusals(batch: Batch, receipt: Receipt): Map<number, LakeSyncError> {
  const refused = new Map<number, LakeSyncError>();
  for (const { index, deltaId: id, error } of receipt.outcomes) {
    const entry = batch.entries[index];
    if (!entry || deltaId(entry.delta) !== id) {
      throw fault("INTERNAL_ERROR", "the receipt names a delta that was not pushed; push again");
    }
    if (error) refused.set(index, error);
  }
  if (receipt.accepted !== batch.entries.length - refused.size) {
    throw fault("INTERNAL_ERROR", "the receipt does not add up; nothing is treated as accepted");
  }
  return refused;
}

// If an earlier push of it got no answer, it may be late because the gateway has it already. Stamped
// again, it would be two events; the next pull decides.
const mayBeStored = (entry: Entry, error: LakeSyncError): boolean =>
  isLate(error) && IN_DOUBT.has(entry.status);

// An unanswered push may still be in flight: its event waits until its time has come.
const mayBeInFlight = (entry: Entry, error: LakeSyncError, serverMs: number): boolean =>
  isDrift(error) &&
  entry.status !== "pending" &&
  stampMs(hlcOf(entry)) - serverMs <= UNDER_WAY_MS_MAX;

function sortOut(
  work: Work,
  entry: Entry,
  error: LakeSyncError,
  at: Stamp,
  result: BatchResult,
  kept: Entry[],
): void {
  if (error.code === "ATOMIC_PUSH_REFUSED") {
    kept.push(entry);
  } else if (error.code === "ATOMIC_PUSH_TOO_LARGE") {
    kept.push(entry);
    result.refused = error;
  } else if (isFinal(work, entry, error, at)) {
    quarantine(work, [entry], error);
    result.quarantined += 1;
  } else {
    kept.push(entry);
    result.blocked = error;
  }
}

/** Whether a refusal stays: not if the next pull brings the row's delete, and an answer to it. */
function isFinal(work: Work, entry: Entry, error: LakeSyncError, at: Stamp): boolean {
  if (error.code !== "ROW_DELETED")
    return error.retry === "never" || error.code === "TABLE_NOT_DECLARED";
  const base = known(work.row(keyOf(entry.delta)));
  const isRead = work.position.cursor >= at || !(base.alive || base.columns.size);
  return entry.delta.op !== "UPDATE" || isRead;
}

/** Set entries aside, with the reason for their refusal. */
export function quarantine(work: Work, entries: readonly Entry[], error: LakeSyncError): void {
  for (const each of entries) {
    const entry = work.entry(hlcOf(each));
    if (!entry) continue;
    work.putEntry({ ...entry, status: "quarantined", code: error.code, message: error.message });
  }
}

function move(work: Work, entry: Entry, to: Status, from: (status: Status) => boolean): void {
  const now = work.entry(hlcOf(entry));
  if (now && from(now.status)) work.putEntry({ ...now, status: to });
}

/** Note that entries are about to leave. */
export function markSent(work: Work, entries: readonly Entry[]): void {
  for (const entry of entries) {
    move(work, entry, "sent", (status) => ["pending", "unseen", "late"].includes(status));
  }
}

/** Give entries that a push left behind the statuses that they had before it. */
export function markPending(work: Work, entries: readonly Entry[]): void {
  for (const entry of entries) {
    const before = entry.status === "sent" ? "unseen" : entry.status;
    move(work, entry, before, (status) => status === "sent");
  }
}

function acknowledgeAll(work: Work, entries: readonly Entry[], by: Stamp): void {
  // An echo may have come first.
  const there = entries.filter((each) => same(work.entry(hlcOf(each)), deltaId(each.delta)));
  work.accepted(there.reduce((most, entry) => max(most, hlcOf(entry)), 0n));
  const byRow = new Map<string, Delta[]>();
  for (const { delta } of there)
    byRow.set(keyOf(delta), [...(byRow.get(keyOf(delta)) ?? []), delta]);
  for (const [key, deltas] of byRow) {
    if (work.isOld(key)) {
      // The first page that shows the row replaces it, and may be older than these edits.
      for (const { hlc } of deltas) {
        work.putEntry({ ...work.entry(hlc)!, status: "held_back", txn: null });
      }
      continue;
    }
    noteShown(work, key, by);
    for (const { hlc } of deltas) work.dropEntry(hlc);
    if (isRuled(work, deltas[0]!.table)) {
      noteAccepted(work, key, deltas, by);
      // What a page has shown of an edit is not merged again: rules may omit some of its columns.
      const base = known(work.row(key));
      const shown = ownStamps(work, { ...base, alive: 0n });
      if (deltas.some((delta) => shown.has(delta.hlc))) {
        const rest = deltas.filter((delta) => !shown.has(delta.hlc));
        refold(work, new Map([[key, merge(rest, base)]]));
        continue;
      }
    }
    acknowledge(work, key, deltas);
  }
}

// --- stamping again -------------------------------------------------------------------------------

function restamp(
  work: Work,
  batch: Batch,
  late: readonly Entry[],
  drifted: boolean,
  serverMs: number,
) {
  let start = startOf(batch, late[0]!);
  let taken: Entry[];
  if (drifted) {
    // The clock cannot be reset below what is set aside, so that is stamped again too.
    const aside = firstAside(
      work,
      stamp(serverMs + DRIFT_MS_MAX),
      stamp(serverMs + UNDER_WAY_MS_MAX),
    );
    if (aside !== null && aside < start) start = aside;
    taken = takeFrom(work, start, new Set());
    work.stepBack();
  } else {
    taken = takeFrom(work, start, new Set(late.map((entry) => fold(entry.delta.table))));
  }
  const groups = new Map<Stamp, Stamp>();
  const stamps: [Delta, Stamp][] = [];
  for (const entry of taken) {
    const hlc = work.now();
    let txn = entry.txn;
    if (txn !== null) {
      if (!groups.has(txn)) groups.set(txn, hlc);
      txn = groups.get(txn)!;
    }
    const status = entry.status === "quarantined" ? "quarantined" : "pending";
    const first = entry.first ?? entry.delta.hlc;
    work.putEntry({ ...entry, delta: { ...entry.delta, hlc }, first, txn, status });
    stamps.push([entry.delta, hlc]);
  }
  refold(work, new Map(stamps.map(([delta]) => [keyOf(delta), null])));
  followStamps(work, stamps);
}

/** Where stamping again begins: at the first edit of the first refused transaction. */
function startOf(batch: Batch, first: Entry): Stamp {
  const whole = batch.entries.filter((entry) => first.txn !== null && entry.txn === first.txn);
  return [first, ...whole].map(hlcOf).reduce((least, hlc) => (hlc < least ? hlc : least));
}

export const isStopped = (entry: Entry): boolean =>
  entry.code !== "" && ["pending", "sent", "unseen", "late"].includes(entry.status);

function firstAside(work: Work, quarantined: Stamp, stopped: Stamp): Stamp | null {
  const aside = work.entries().find(
    (entry) =>
      (entry.status === "quarantined" && hlcOf(entry) > quarantined) ||
      (isStopped(entry) && hlcOf(entry) > stopped),
  ); // prettier-ignore
  return aside ? hlcOf(aside) : null;
}

/**
 * Remove the entries from a stamp on that are stamped again.
 *
 * With `events`, the tables whose order is the reason: what may be at the gateway of these tables
 * stays, and so do edits of other tables that were set aside, but for those of a transaction that
 * goes.
 */
function takeFrom(work: Work, start: Stamp, events: ReadonlySet<string>): Entry[] {
  const entries = work
    .entries()
    .filter((entry) => hlcOf(entry) >= start)
    .filter((entry) => !["held_back", "offered", "lost"].includes(entry.status));
  const isEvent = (entry: Entry): boolean => events.has(fold(entry.delta.table));
  const moving = new Set(
    entries
      .filter((entry) => isEvent(entry) && !IN_DOUBT.has(entry.status))
      .map((entry) => entry.txn),
  );
  moving.delete(null);
  const stays = (entry: Entry): boolean =>
    isEvent(entry)
      ? IN_DOUBT.has(entry.status)
      : events.size > 0 && entry.code !== "" && !moving.has(entry.txn);
  const taken = entries.filter((entry) => !stays(entry));
  for (const entry of taken) work.dropEntry(hlcOf(entry));
  return taken;
}
