/**
 * Pages: merged into the rows, with the position, in one transaction.
 *
 * Edits that wait survive, because a row's state contains them: a page can only add to it. While
 * everything is read again, rows are *old* until a page brings them. Laws K5, K12-K16, K33, K37:
 * docs/spec/client.md.
 */

import { byteLength } from "./bytes.js";
import { forgetShown, hideConflicts, hideShown, Lost } from "./conflicts.js";
import {
  EVERYTHING,
  expire,
  giveBack,
  hidePassed,
  isRuled,
  keep,
  noteKept,
  noteUnread,
  omitHidden,
  shownBy,
} from "./echoes.js";
import { makeOld } from "./edits.js";
import {
  deltaId,
  deltasOf,
  EMPTY,
  fold as merge,
  isTombstone,
  newerThan,
  newest,
  type Delta,
  type State,
} from "./merge.js";
import type { Arrived, Page, Resync } from "./messages.js";
import { EMPTY_BASES, isRespelled, refold, store, table as tableFor, without } from "./rows.js";
import {
  fold,
  isStored,
  known,
  NO_ROW,
  rowKey,
  same,
  tableOf,
  type Entry,
  type Mode,
  type Needs,
  type Row,
  type Work,
} from "./state.js";
import { DRIFT, max, min, stamp, type Stamp } from "./stamp.js";

const TOMBSTONE_MS = 35 * 86_400_000;
const STAMPS_TRIED_MAX = 8n;
const DELTA_BYTES_MAX = 256 * 1024;

const isReplacing = (mode: Mode): boolean => mode === "replace" || mode === "restore";

/** Where the log continues behind a snapshot. */
const logBehind = (snapshot: string): Stamp => BigInt(`0x${snapshot.split("|")[0]}`);

/** The rows that a page concerns. */
export function needsOfPage(work: Work, page: Page, isRebuilt: boolean): Needs {
  const { mode } = work.position;
  const concerned = work.tables.filter(
    ([, table]) => page.resync && concerns(page.resync, table.name),
  );
  const respelled = page.deltas.filter(({ table, columns }) =>
    isRespelled(
      work,
      table,
      columns.map(([name]) => name),
    ),
  );
  const isEnd = !page.hasMore && (mode !== "" || isRebuilt || page.resync !== null);
  const back = work
    .entries()
    .filter(({ status }) => status === "held_back" || status === "offered");
  return {
    keys: [
      ...page.deltas.map((delta) => rowKey(delta.table, delta.rowId)),
      ...(isEnd ? back.map(({ delta }) => rowKey(delta.table, delta.rowId)) : []),
    ],
    marks: ["echo", "unread", ...(page.hasMore ? [] : (["tombstone"] as const))],
    tables: [
      ...(page.resync && (isEnd || Object.keys(page.resync.omitted).length) ? concerned : []).map(
        ([key]) => key,
      ),
      ...respelled.map((delta) => fold(delta.table)),
    ],
    old: isEnd,
    all: isRebuilt || (page.resync !== null && isReplacing(mode)),
    isReadAgain: true,
  };
}

/** Merge a page, which follows the position, and move the position; safe to repeat. */
export function applyPage(work: Work, page: Page): void {
  if (page.resync) readAgain(work, page.resync);
  const echoed = acknowledgeEchoes(work, page.deltas);
  const logStart = page.snapshot ? null : beginLog(work);
  const until = page.snapshot ? logBehind(page.snapshot) : page.cursor;
  const lost = new Lost(work);
  for (const [name, deltas] of grouped(page.deltas, (delta) => delta.table)) {
    const columns = new Set(deltas.flatMap((delta) => delta.columns.map(([column]) => column)));
    tableFor(work, name, [...columns].sort(), true);
    const byRow = grouped(deltas, (delta) => rowKey(name, delta.rowId));
    bring(work, name, byRow, echoed, lost, logStart, until);
  }
  followClock(work, page);
  if (!page.snapshot) {
    hidePassed(work, page.cursor);
    forgetShown(work, page.cursor);
  }
  if (page.scope !== work.position.scope) releaseUndeclared(work); // rules may name their tables now
  const cursor = page.snapshot ? work.position.cursor : page.cursor;
  work.set({ epoch: page.epoch, snapshot: page.snapshot, scope: page.scope, cursor });
  if (!page.hasMore) {
    work.set({ syncedMs: Math.max(1, work.serverMs) });
    finish(work);
    dropTombstones(work, page.cursor);
    expire(work, page.cursor);
    settleDoubts(work, page.cursor + DRIFT);
  }
  lost.keep();
}

function grouped<T>(items: readonly T[], by: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const group = groups.get(by(item));
    if (group) group.push(item);
    else groups.set(by(item), [item]);
  }
  return groups;
}

function followClock(work: Work, page: Page): void {
  const last = newest(page.deltas);
  if (!last) return;
  // With rules, a row that becomes visible is sent at once, ahead of the cursor.
  const isFiltered = page.scope !== "" && page.scope !== EVERYTHING;
  const cursor = isFiltered ? max(page.cursor, last) : page.cursor;
  work.accepted(min(last, cursor + DRIFT));
}

export function releaseUndeclared(work: Work): void {
  for (const entry of work.entries()) {
    if (entry.status !== "quarantined" || entry.code !== "TABLE_NOT_DECLARED") continue;
    work.putEntry({ ...entry, status: "pending", code: "", message: "" });
  }
}

/** Remove from the outbox what the page proves to be at the gateway; by row, how many. */
function acknowledgeEchoes(work: Work, deltas: readonly Arrived[]): Map<string, number> {
  const echoed = new Map<string, number>();
  const own = deltas.filter((delta) => delta.clientId === work.clientId && delta.op !== "REMOVE");
  for (const delta of own) {
    if (!same(work.entry(delta.hlc), delta.id || deltaId(delta))) continue;
    work.dropEntry(delta.hlc);
    const key = rowKey(delta.table, delta.rowId);
    echoed.set(key, (echoed.get(key) ?? 0) + 1);
  }
  return echoed;
}

/** The stamp behind which the log is complete from this page on. */
function beginLog(work: Work): Stamp {
  const { snapshot, cursor, mode } = work.position;
  if (!snapshot) return cursor + DRIFT;
  const since = logBehind(snapshot);
  if (isReplacing(mode)) offer(work, (entry) => entry.delta.hlc <= since + DRIFT);
  return since + DRIFT;
}

/** Let what a snapshot may lack be pushed. */
function offer(work: Work, which: (entry: Entry) => boolean): void {
  for (const entry of work.entries()) {
    if (entry.status === "held_back" && which(entry))
      work.putEntry({ ...entry, status: "offered" });
  }
}

// --- the rows of a page ---------------------------------------------------------------------------

function bring(
  work: Work,
  table: string,
  byRow: Map<string, Arrived[]>,
  echoed: Map<string, number>,
  lost: Lost,
  logStart: Stamp | null,
  until: Stamp,
): void {
  const seen = new Map<string, Row>([...byRow.keys()].map((key) => [key, work.row(key)]));
  const bases = newBases(work, table, byRow.keys(), logStart);
  for (const key of byRow.keys()) lost.begin(key, logStart === null || bases.has(key));
  const notCompared = new Set(logStart === null ? byRow.keys() : bases.keys());
  hide(work, byRow, seen, bases, lost, until);
  for (const [key, deltas] of byRow) {
    const missing = shownBy(work, key, deltas, until);
    const omitted = omittedOf(work, bases.get(key) ?? known(work.row(key)), deltas);
    if (!isStored(work.row(key)) || (!missing.size && !omitted)) continue;
    const base = omitted ?? bases.get(key) ?? known(work.row(key));
    bases.set(key, missing.size ? without(base, work.clientId, missing) : base);
  }
  if (bases.size) refold(work, bases);
  for (const key of bases.keys()) echoed.delete(key); // merged again without its echoes already
  for (const [key, deltas] of byRow) {
    const row = work.row(key);
    const after = merge(deltas, row.state);
    if (!notCompared.has(key)) lost.compare(key, seen.get(key) ?? NO_ROW, after, deltas, until);
    if (row.base === null) {
      if (after !== row.state) store(work, key, after, null, 0);
    } else {
      const waiting = Math.max(row.waiting - (echoed.get(key) ?? 0), 0);
      store(work, key, after, waiting ? merge(deltas, row.base) : null, waiting);
    }
    if (isStored(work.row(key))) work.putRow(key, { generation: work.position.generation });
  }
  insertAgain(work, table, byRow, seen);
}

/**
 * A row without those columns of own writes that the page shows without them: rules omit them.
 *
 * Null if there are none.
 */
function omittedOf(work: Work, base: State, deltas: readonly Delta[]): State | null {
  const own = deltas.filter((delta) => delta.clientId === work.clientId && delta.op !== "REMOVE");
  if (!own.length) return null;
  const shown = new Map<Stamp, Set<string>>();
  for (const { hlc, columns } of own) {
    const names = shown.get(hlc) ?? new Set();
    for (const [name] of columns) names.add(name);
    shown.set(hlc, names);
  }
  const isOmitted = (name: string, hlc: Stamp, clientId: string): boolean =>
    clientId === work.clientId && shown.get(hlc)?.has(name) === false;
  const kept = [...base.columns].filter(
    ([name, [hlc, clientId]]) => !isOmitted(name, hlc, clientId),
  );
  return kept.length === base.columns.size ? null : { ...base, columns: new Map(kept) };
}

/** Give rows that a page removes an empty base, and leave what the page brings after it. */
function hide(
  work: Work,
  byRow: Map<string, Arrived[]>,
  seen: ReadonlyMap<string, Row>,
  bases: Map<string, State>,
  lost: Lost,
  until: Stamp,
): void {
  for (const [key, deltas] of byRow) {
    const last = deltas.findLastIndex((delta) => delta.op === "REMOVE");
    if (last < 0) continue;
    const row = seen.get(key) ?? NO_ROW;
    hideShown(work, key);
    for (const late of deltas) {
      if (late.op === "DELETE" && late.clientId !== work.clientId)
        deletedLate(work, key, row, late, lost);
    }
    byRow.set(key, deltas.slice(last + 1));
    bases.set(key, EMPTY);
    keep(work, key, known(row), new Set(row.echoes.keys()), until);
  }
}

/** Tell of own writes that are gone with a row of which a late delete left too little. */
function deletedLate(work: Work, key: string, row: Row, late: Delta, lost: Lost): void {
  for (const [column, [ownHlc, clientId, own]] of row.state.columns) {
    if (clientId !== work.clientId || ownHlc <= late.hlc) continue;
    lost.addClash({
      table: tableOf(key), rowId: late.rowId, column, own, ownHlc, other: null, otherHlc: late.hlc,
      otherClient: late.clientId, base: null, won: false, deleted: true, hidden: false,
    }); // prettier-ignore
  }
}

/** Put rows that a page has deleted into the outbox again, if updates of them wait. */
function insertAgain(
  work: Work,
  table: string,
  byRow: ReadonlyMap<string, readonly Delta[]>,
  seen: ReadonlyMap<string, Row>,
): void {
  if (work.deleteWins(table) || !isRuled(work, table)) return;
  for (const [key, deltas] of byRow) {
    const before = seen.get(key);
    const waits = before !== undefined && before.base !== null;
    if (!waits || !deltas.some((delta) => delta.op === "DELETE")) continue;
    const writes = deltas.filter((delta) => delta.op !== "DELETE");
    const made = insertOf(work, table, key, merge(writes, known(before)));
    if (!made) continue;
    work.putEntry({ delta: made, status: "pending", txn: null, code: "", message: "" });
    refold(work, new Map([[key, null]]));
  }
}

function insertOf(work: Work, table: string, key: string, before: State): Delta | null {
  const row = work.row(key);
  const base = known(row);
  if (base.alive || base.columns.size || row.state.alive || !row.state.columns.size) return null;
  const updates = work
    .entries()
    .filter((entry) => rowKey(entry.delta.table, entry.delta.rowId) === key)
    .filter((entry) => entry.status !== "quarantined" && entry.delta.op === "UPDATE")
    .map((entry) => entry.delta.hlc)
    .filter((hlc) => hlc > base.deleted);
  const first = updates[0] ?? 0n;
  const columns = [...before.columns.keys()]
    .sort()
    .map((name): [string, string] => [name, before.columns.get(name)![2]]);
  const size = columns.reduce((sum, [, value]) => sum + byteLength(value), 0);
  const end = min(first, base.deleted + 1n + STAMPS_TRIED_MAX);
  for (let hlc = base.deleted + 1n; hlc < end; hlc += 1n) {
    if (work.entry(hlc)) continue;
    const { clientId } = work;
    const rowId = key.slice(key.indexOf("\n") + 1);
    const isFit = columns.length > 0 && size <= DELTA_BYTES_MAX;
    return isFit ? { op: "INSERT", table, rowId, clientId, hlc, columns } : null;
  }
  return null;
}

// --- reading again --------------------------------------------------------------------------------

/** Make every row old and put the cursor at 0. */
export function startAgain(work: Work, isRestored: boolean): void {
  const wasRestoring = work.position.mode === "restore";
  if (isRestored) {
    holdBack(work, () => true);
    giveBack(work);
  }
  makeOld(
    work,
    work.tables.map(([key]) => key),
  );
  for (const [key, row] of [...work.loaded()]) {
    if (row.echoes.size) work.putRow(key, { echoes: new Map() });
  }
  const mode = isRestored || wasRestoring ? "restore" : "replace";
  work.set({ cursor: 0n, mode, horizons: {} });
}

const concerns = (resync: Resync, table: string): boolean =>
  resync.tables.includes(table) || (resync.named !== null && !resync.named.includes(table));

/** Make the rows of some tables old; the cursor stays. */
function readAgain(work: Work, resync: Resync): void {
  const { mode, horizons } = work.position;
  const concerned = work.tables.filter(([, table]) => concerns(resync, table.name));
  for (const [key, table] of concerned) {
    if (!isReplacing(mode) && !isRuled(work, table.name)) noteUnread(work, key);
    const omitted = resync.omitted[resync.tables.includes(table.name) ? table.name : ""] ?? [];
    leaveOut(work, key, new Set(omitted));
  }
  // An edit that was accepted since the re-read began is not held back, but replaced with its row.
  if (isReplacing(mode)) holdBack(work, (key) => !work.isOld(key));
  makeOld(
    work,
    concerned.map(([key]) => key),
  );
  const raised: Record<string, Stamp> = { ...horizons };
  for (const [key, table] of work.tables) {
    const horizon = max(raised[key] ?? 0n, resync.horizons[table.name] ?? 0n);
    if (horizon) raised[key] = horizon;
  }
  work.set({ mode: mode || "merge", horizons: raised });
}

/** Remove the contents of columns that rules omit, except from edits that wait. */
function leaveOut(work: Work, table: string, omitted: ReadonlySet<string>): void {
  if (!omitted.size) return;
  const bases = new Map<string, State>();
  for (const [key, row] of work.loaded(table)) {
    const state = known(row);
    const kept = [...state.columns].filter(([name]) => !omitted.has(fold(name)));
    if (kept.length < state.columns.size) bases.set(key, { ...state, columns: new Map(kept) });
  }
  refold(work, bases);
  hideConflicts(work, (each) => each.table === table && omitted.has(fold(each.column)));
  omitHidden(work, table, omitted);
}

/** The bases that a page's old rows get before it is merged; they are no longer old. */
function newBases(
  work: Work,
  table: string,
  keys: Iterable<string>,
  logStart: Stamp | null,
): Map<string, State> {
  const { mode, horizons, generation } = work.position;
  if (!mode) return new Map();
  const old = [...keys].filter((key) => work.isOld(key));
  const states = new Map(old.map((key) => [key, known(work.row(key))]));
  for (const key of old) work.putRow(key, { generation });
  if (isReplacing(mode)) return EMPTY_BASES(old);
  if (logStart === null) {
    const newer = old.map(
      (key) => [key, newerThan(states.get(key)!, horizons[fold(table)] ?? 0n)] as const,
    );
    return new Map(newer.filter(([key, state]) => state !== states.get(key)));
  }
  const bases = new Map(old.map((key) => [key, ownAfter(work, states.get(key)!, logStart)]));
  // Of what rules hide, the log brings nothing.
  if (isRuled(work, table)) for (const [key, state] of bases) noteKept(work, key, state);
  return bases;
}

/** This client's writes to a row that the log has yet to bring. */
function ownAfter(work: Work, state: State, logStart: Stamp): State {
  const own = [...state.columns].filter(
    ([, [hlc, clientId]]) => hlc > logStart && clientId === work.clientId,
  );
  const isInserted = own.some(([, [hlc]]) => hlc === state.alive);
  return { alive: isInserted ? state.alive : 0n, deleted: 0n, columns: new Map(own) };
}

/** Hold this client's own writes back until everything was read again. */
function holdBack(work: Work, which: (key: string) => boolean): void {
  const rows = [...work.loaded()].filter(([key, row]) => isStored(row) && which(key));
  // The outbox has one entry for a stamp: what is certainly this client's own comes first.
  for (const isAnonymous of [false, true]) {
    for (const [key, row] of rows) {
      const name = work.table(tableOf(key))?.name ?? tableOf(key);
      const rowId = key.slice(key.indexOf("\n") + 1);
      for (const delta of deltasOf(name, rowId, known(row), work.clientId)) {
        const isOwn = delta.clientId === work.clientId && isAnonymous !== delta.columns.length > 0;
        if (!isOwn || work.entry(delta.hlc)) continue;
        work.putEntry({ delta, status: "held_back", txn: null, code: "", message: "" });
      }
    }
  }
  // The base has them too, until the row is dropped: then it is merged again.
  const counts = new Map<string, number>();
  for (const { delta } of work.entries()) {
    const key = rowKey(delta.table, delta.rowId);
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  for (const [key, waiting] of counts) {
    const row = work.row(key);
    if (isStored(row)) work.putRow(key, { base: row.base ?? row.state, waiting });
  }
}

/** Drop all rows that no page brought; ends the re-read, if there is one. */
function finish(work: Work): void {
  if (!work.position.mode) return;
  const old = [...work.loaded()].map(([key]) => key).filter((key) => work.isOld(key));
  for (const key of old) {
    work.putRow(key, { echoes: new Map(), generation: work.position.generation });
  }
  const isGone = new Set(old);
  hideConflicts(work, (conflict) => isGone.has(rowKey(conflict.table, conflict.rowId)));
  refold(work, EMPTY_BASES(old));
  dropWhatIsThere(work);
  offer(work, (entry) => isRuled(work, entry.delta.table));
  for (const entry of work.entries()) {
    if (entry.status === "held_back") work.putEntry({ ...entry, status: "lost" });
  }
  work.set({ mode: "", horizons: {} });
}

/** Remove entries that, by the pages that were read, are at the gateway. */
function dropWhatIsThere(work: Work): void {
  const touched = new Map<string, null>();
  for (const { delta, status } of work.entries()) {
    if (status !== "held_back" && status !== "offered") continue;
    const key = rowKey(delta.table, delta.rowId);
    const base = known(work.row(key));
    if (merge([delta], base) !== base) continue;
    work.dropEntry(delta.hlc);
    touched.set(key, null);
  }
  refold(work, touched);
}

function dropTombstones(work: Work, cursor: Stamp): void {
  const until = cursor - stamp(TOMBSTONE_MS);
  for (const [key, row] of [...work.loaded()]) {
    if (row.base !== null || !isTombstone(row.state) || row.tombstone === null) continue;
    const since = row.tombstone || cursor;
    if (since <= until) work.putRow(key, { state: EMPTY, tombstone: null });
    else if (since !== row.tombstone) work.putRow(key, { tombstone: since });
  }
}

/** Note that no sent entry up to a stamp was at the gateway when a pull to the end began. */
function settleDoubts(work: Work, until: Stamp): void {
  for (const entry of work.entries()) {
    if (entry.delta.hlc > until || (entry.status !== "sent" && entry.status !== "late")) continue;
    work.putEntry({ ...entry, status: entry.status === "sent" ? "unseen" : "pending" });
  }
}
