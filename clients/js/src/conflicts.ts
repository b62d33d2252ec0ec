/**
 * Lost writes: of two writes of one value that did not know each other, one is lost, and it is told.
 *
 * What pages have shown of a row is compared with what this client wrote on top of it. It *lost* if
 * its write was not shown yet, and the page brings a later one of another client that reached the
 * gateway first, or arrives while the own write waits. It *won* if its write stands, and the page
 * brings a value that it replaced at the gateway and that was never shown here. Which came first is
 * the order of a page's deltas. Whole rows have none: a first sync or a re-read is not compared.
 * Law K27: docs/spec/client.md.
 */

import type { Json } from "./json.js";
import {
  apply,
  equal,
  EMPTY,
  fold as merge,
  type Delta,
  type Register,
  type State,
} from "./merge.js";
import { fold, idOf, known, tableOf, type Conflict, type Row, type Work } from "./state.js";
import { max, type Stamp } from "./stamp.js";

const CONFLICTS_MAX = 10_000;
/** A commit that no page reaches. */
const NEVER: Stamp = 1n << 62n;

// --- what pages had shown -------------------------------------------------------------------------

/** Note own writes that a receipt accepts, before they become a part of the base. */
export function noteShown(work: Work, key: string, accepted: Stamp): void {
  const row = work.row(key);
  const waits = row.unread && row.unread.accepted > work.position.cursor;
  work.putRow(key, { unread: { accepted, known: waits ? row.unread.known : known(row) } });
}

/** Note that rules hide rows: nothing that was shown of them is kept. */
export function hideShown(work: Work, key: string): void {
  const { waiting } = work.row(key);
  work.putRow(key, { unread: waiting ? { accepted: NEVER, known: null } : null });
  hideConflicts(
    work,
    (conflict) => conflict.table === tableOf(key) && conflict.rowId === idOf(key),
  );
}

/** Remove what others wrote from conflicts that rules hide. */
export function hideConflicts(work: Work, which: (conflict: Conflict) => boolean): void {
  for (const [key, conflict] of work.conflicts) {
    if (!which(conflict)) continue;
    const nothing = { other: null, otherHlc: 0n, otherClient: "", base: null, hidden: true };
    work.putConflict(key, { ...conflict, ...nothing });
  }
}

/** Forget the notes that a page of the log, which ends at a commit, has made superfluous. */
export function forgetShown(work: Work, cursor: Stamp): void {
  for (const [key, row] of [...work.loaded()]) {
    if (row.unread && row.unread.accepted <= cursor) work.putRow(key, { unread: null });
  }
}

// --- what was lost --------------------------------------------------------------------------------

interface Compared {
  readonly key: string;
  readonly deleteWins: boolean;
  readonly before: State;
  /** The row without own writes that no page had shown. */
  readonly shown: State;
  readonly after: State;
  readonly deltas: readonly Delta[];
}

/** What one page says of lost writes. */
export class Lost {
  private readonly notes = new Map<string, Row["unread"]>();
  private readonly clashes: [Conflict, Stamp][] = [];

  constructor(private readonly work: Work) {}

  /** Read a row's note before the page is merged; forget it if the row is read anew. */
  begin(key: string, isReadAnew: boolean): void {
    const { unread } = this.work.row(key);
    if (!unread) return;
    if (isReadAnew) this.work.putRow(key, { unread: null });
    else if (unread.accepted > this.work.position.cursor) this.notes.set(key, unread);
  }

  /**
   * Find what was lost between a row as this client saw it and a page's deltas.
   *
   * @param until - the page's last commit
   */
  compare(key: string, seen: Row, after: State, deltas: readonly Delta[], until: Stamp): void {
    const note = this.notes.get(key) ?? null;
    if ((seen.base === null && !note) || !deltas.length) return;
    const shown = note?.known ?? known(seen);
    if (note) this.advance(key, note, deltas, until);
    const me = this.work.clientId;
    if (deltas.every((delta) => delta.clientId === me)) return;
    const deleteWins = this.work.deleteWins(tableOf(key));
    const row: Compared = { key, deleteWins, before: seen.state, shown, after, deltas };
    this.lost(row);
    if (!note || note.known) this.won(row);
  }

  private advance(
    key: string,
    note: NonNullable<Row["unread"]>,
    deltas: readonly Delta[],
    until: Stamp,
  ) {
    if (!note.known) this.work.putRow(key, { unread: null });
    else if (note.accepted > until) {
      this.work.putRow(key, {
        unread: { accepted: note.accepted, known: merge(deltas, note.known) },
      });
    }
  }

  /** This client's write of a column, if it stands and no page had shown it. */
  private unshown(row: Compared, name: string): Register | null {
    const own = row.before.columns.get(name);
    const isUnshown = own?.[1] === this.work.clientId && !equal(own, row.shown.columns.get(name));
    return isUnshown ? own : null;
  }

  private lost(row: Compared): void {
    const { after, deltas } = row;
    const me = this.work.clientId;
    const isGone = row.deleteWins && !after.alive;
    const place = (hlc: Stamp, client: string, otherwise: number): number => {
      const at = deltas.findLastIndex((delta) => delta.hlc === hlc && delta.clientId === client);
      return at < 0 ? otherwise : at;
    };
    const deleter = deltas.findLast(
      (delta) => delta.op === "DELETE" && delta.hlc === after.deleted,
    );
    for (const name of row.before.columns.keys()) {
      const own = this.unshown(row, name);
      if (!own) continue;
      const isDeleted = isGone || after.deleted >= own[0];
      const by = isDeleted ? deleter : undefined;
      const [hlc, client, value] = by
        ? [by.hlc, by.clientId, null]
        : (after.columns.get(name) ?? own);
      const wasFirst = place(own[0], me, deltas.length) < place(hlc, client, -1);
      if (client === me || wasFirst || (!by && value === own[2])) continue;
      this.add(row, name, own, [hlc, client, value], !!by, false);
    }
  }

  private won(row: Compared): void {
    const me = this.work.clientId;
    let pulled = row.shown;
    const echoes = new Set<Stamp>();
    for (const delta of row.deltas) {
      if (delta.clientId === me && delta.op !== "REMOVE") {
        echoes.add(delta.hlc);
        const write = merge([delta]);
        this.replaced(row, pulled, write.columns, write.deleted);
      }
      pulled = apply(pulled, delta);
    }
    const yet = new Map<string, Register>();
    for (const name of row.before.columns.keys()) {
      const own = this.unshown(row, name);
      if (own && !echoes.has(own[0])) yet.set(name, own);
    }
    const { deleted } = row.before;
    const isYet = deleted !== row.shown.deleted && !echoes.has(deleted);
    this.replaced(row, pulled, yet, isYet ? deleted : 0n);
  }

  /** Tell what own writes replaced of what was pulled, if it was not shown before. */
  private replaced(
    row: Compared,
    pulled: State,
    columns: ReadonlyMap<string, Register>,
    deleted: Stamp,
  ): void {
    const me = this.work.clientId;
    for (const [name, other] of pulled.columns) {
      const base = row.shown.columns.get(name);
      if (other[1] === me || equal(other, base) || base?.[2] === other[2]) continue;
      let own: readonly [Stamp, string, Json | null] | undefined = columns.get(name);
      if (deleted && (row.deleteWins || other[0] <= deleted)) own = [deleted, me, null];
      if (!own || own[2] === other[2]) continue;
      const isLater = own[0] > other[0] || (own[0] === other[0] && me > other[1]);
      if (own[2] === null || isLater) this.add(row, name, own, other, own[2] === null, true);
    }
  }

  private add(
    row: Compared,
    column: string,
    own: readonly [Stamp, string, Json | null],
    other: readonly [Stamp, string, Json | null],
    deleted: boolean,
    won: boolean,
  ): void {
    const base = row.shown.columns.get(column)?.[2] ?? null;
    this.addClash({
      table: tableOf(row.key),
      rowId: idOf(row.key),
      column,
      own: own[2],
      ownHlc: own[0],
      other: other[2],
      otherHlc: other[0],
      otherClient: other[1],
      base,
      won,
      deleted,
      hidden: false,
    });
  }

  addClash(conflict: Conflict): void {
    this.clashes.push([conflict, 0n]);
  }

  /** Store what was found: one own write has one conflict, with the latest write of the others. */
  keep(): void {
    const { work } = this;
    if (!this.clashes.length) return;
    const all = new Map(work.conflicts);
    const places = new Map([...all].map(([key, conflict]) => [writeOf(conflict), key]));
    let last = [...all.keys()].reduce((most, key) => max(most, BigInt(key)), 0n);
    const put = (key: string, conflict: Conflict): void => {
      all.set(key, conflict);
      work.putConflict(key, conflict);
    };
    for (const [conflict] of this.clashes) {
      const key = places.get(writeOf(conflict));
      const before = key === undefined ? undefined : all.get(key);
      if (key !== undefined && before) {
        put(key, { ...conflict, own: before.own, base: before.base });
        continue;
      }
      last += 1n;
      places.set(writeOf(conflict), String(last));
      put(String(last), conflict);
    }
    const keys = [...all.keys()].map(BigInt).sort((one, other) => (one < other ? -1 : 1));
    for (const key of keys.slice(0, Math.max(keys.length - CONFLICTS_MAX, 0))) {
      work.putConflict(String(key), null);
    }
  }
}

/** What identifies the own write of a value. */
const writeOf = ({ table, rowId, ownHlc, column }: Conflict): string =>
  JSON.stringify([table, rowId, String(ownHlc), fold(column)]);

export const NOTHING_SHOWN: State = EMPTY;
