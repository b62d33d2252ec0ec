/**
 * Own writes after the outbox: accepted and not shown yet, or hidden by rules.
 *
 * With sync rules a row may be hidden from its own author, and then no page reports it. So each
 * accepted write is noted until the first page that shows its row, or the first page of the log that
 * passes its commit: if that one does not show it, rules hide it. Then it leaves the rows, and stays
 * in the journal for as long as a backup may reach back. Laws K13, K15: docs/spec/client.md.
 */

import { deltasOf, EMPTY, fold as merge, isEmpty, type Delta, type State } from "./merge.js";
import { keyOf, refold, without } from "./rows.js";
import { fold, idOf, isStored, known, tableOf, type Row, type Work } from "./state.js";
import { DRIFT, stamp, type Stamp } from "./stamp.js";

const JOURNAL_MS = 35 * 86_400_000;
export const EVERYTHING = "*";

/** Whether rules may hide rows of a table: before the first page, of any. */
export function isRuled(work: Work, table: string): boolean {
  const { cursor, snapshot, scope } = work.position;
  if (!cursor && !snapshot && !scope) return true;
  return digestOf(scope || EVERYTHING, work.table(table)?.name ?? table) !== EVERYTHING;
}

/** A table's digest in a scope: `others~table.digest~…`. */
function digestOf(scope: string, table: string): string {
  const [others = "", ...named] = scope.split("~");
  const item = named.find((each) => each.slice(0, each.indexOf(".")) === table);
  return item === undefined ? others : item.slice(item.indexOf(".") + 1);
}

/** The stamps in a row that may be this client's own. */
export function ownStamps(work: Work, state: State): Set<Stamp> {
  const own = [...state.columns.values()].filter((write) => write[1] === work.clientId);
  return new Set([...own.map((write) => write[0]), state.alive]);
}

const note = (work: Work, key: string, stamps: Iterable<readonly [Stamp, Stamp]>): void => {
  const { echoes } = work.row(key);
  const all = new Map([...stamps, ...echoes]); // what is noted stays as it is
  if (all.size > echoes.size) work.putRow(key, { echoes: all });
};

const forget = (work: Work, key: string, stamps: Iterable<Stamp>): void => {
  const echoes = new Map(work.row(key).echoes);
  for (const hlc of stamps) echoes.delete(hlc);
  if (echoes.size < work.row(key).echoes.size) work.putRow(key, { echoes });
};

/** Note own writes that a receipt accepts, before they become a part of the base. */
export function noteAccepted(
  work: Work,
  key: string,
  deltas: readonly Delta[],
  accepted: Stamp,
): void {
  const row = work.row(key);
  const base = isStored(row) ? known(row) : EMPTY;
  const before = ownStamps(work, base);
  const after = ownStamps(work, merge(deltas, base));
  const own = deltas.map((delta) => delta.hlc).filter((hlc) => after.has(hlc) && !before.has(hlc));
  const gone = [...row.echoes.keys()].filter((hlc) => !after.has(hlc));
  note(
    work,
    key,
    own.map((hlc) => [hlc, accepted] as const),
  );
  forget(work, key, gone);
}

/** Note the own writes that no page has shown yet of a table that rules begin to filter. */
export function noteUnread(work: Work, table: string): void {
  for (const [key, row] of work.loaded(table)) {
    if (!row.unread || row.unread.accepted <= work.position.cursor) continue;
    const shown = ownStamps(work, row.unread.known ?? EMPTY);
    const own = [...ownStamps(work, known(row))].filter((hlc) => hlc && !shown.has(hlc));
    note(
      work,
      key,
      own.map((hlc) => [hlc, row.unread!.accepted] as const),
    );
  }
}

/** Note own writes that are kept in rows as the log, which rules filter, has yet to pass. */
export function noteKept(work: Work, key: string, kept: State): void {
  const own = [...ownStamps(work, kept)].filter((hlc) => hlc);
  note(
    work,
    key,
    own.map((hlc) => [hlc, hlc - DRIFT] as const),
  );
}

/**
 * Remove the notes of a row that a page shows; returns the writes that it should have shown.
 *
 * @param deltas - the page's, after the last removal
 * @param until - the commit up to which the page is complete
 */
export function shownBy(
  work: Work,
  key: string,
  deltas: readonly Delta[],
  until: Stamp,
): Set<Stamp> {
  const { echoes } = work.row(key);
  const missing = new Set<Stamp>();
  if (!echoes.size) return missing;
  const inPage = new Set(deltas.map((delta) => delta.hlc));
  const shown = [...echoes.keys()].filter((hlc) => !deltas.length || inPage.has(hlc));
  if (!isEmpty({ ...merge(deltas), deleted: 0n })) {
    for (const [hlc, accepted] of echoes) {
      if (accepted <= until && !shown.includes(hlc)) missing.add(hlc);
    }
  }
  forget(work, key, [...shown, ...missing]);
  return missing;
}

/** Hide the writes that were accepted by a commit that all pages have passed. */
export function hidePassed(work: Work, until: Stamp): void {
  for (const [key, row] of [...work.loaded()]) {
    const hidden = [...row.echoes].filter(([, accepted]) => accepted <= until).map(([hlc]) => hlc);
    if (!hidden.length) continue;
    forget(work, key, hidden);
    const state = known(row);
    keep(work, key, state, new Set(hidden), until);
    refold(work, new Map([[key, without(state, work.clientId, new Set(hidden))]]));
  }
}

/** Whether a write was accepted by a commit, and no page has shown it. */
export const hasPassed = (rows: Iterable<Row>, until: Stamp): boolean =>
  [...rows].some((row) => [...row.echoes.values()].some((accepted) => accepted <= until));

/** Keep own writes of a row in the journal. */
export function keep(
  work: Work,
  key: string,
  state: State,
  writes: ReadonlySet<Stamp>,
  at: Stamp,
): void {
  const name = work.table(tableOf(key))?.name ?? tableOf(key);
  for (const delta of deltasOf(name, idOf(key), state, work.clientId)) {
    if (delta.clientId === work.clientId && writes.has(delta.hlc)) work.putHidden({ delta, at });
  }
}

/** Hold the journal back in the outbox: the gateway was restored, and may have lost it. */
export function giveBack(work: Work): void {
  const keys = new Map<string, null>();
  for (const [key, { delta }] of work.journal) {
    const table = work.table(delta.table)?.name ?? delta.table;
    work.replaceHidden(key, null);
    if (!work.entry(delta.hlc)) {
      work.putEntry({
        delta: { ...delta, table },
        status: "held_back",
        txn: null,
        code: "",
        message: "",
      });
    }
    keys.set(keyOf(delta), null);
  }
  refold(work, keys);
}

/** Forget what no backup can have lost by now. */
export function expire(work: Work, cursor: Stamp): void {
  for (const [key, hidden] of work.journal) {
    if (hidden.at <= cursor - stamp(JOURNAL_MS)) work.replaceHidden(key, null);
  }
}

/** Remove columns from what is kept of a table. */
export function omitHidden(work: Work, table: string, omitted: ReadonlySet<string>): void {
  for (const [key, hidden] of work.journal) {
    const { delta } = hidden;
    if (fold(delta.table) !== table) continue;
    const columns = delta.columns.filter(([name]) => !omitted.has(fold(name)));
    if (columns.length === delta.columns.length) continue;
    const isLeft = columns.length > 0 || delta.op !== "UPDATE";
    work.replaceHidden(key, isLeft ? { ...hidden, delta: { ...delta, columns } } : null);
  }
}
