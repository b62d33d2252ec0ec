/**
 * What a client stores, and one transaction on it.
 *
 * Position, clock, tables, outbox, journal and conflicts are small, and in memory as well as stored;
 * rows are loaded where a transaction needs them. A `Work` is one transaction: it sees what it wrote
 * itself, and gives the writes that make it durable. If these fail, it is forgotten, and nothing has
 * happened.
 */

import { byteLength } from "./bytes.js";
import { fault } from "./errors.js";
import { deltaId, EMPTY, isEmpty, type Delta, type State } from "./merge.js";
import { max, next, type Stamp } from "./stamp.js";

/** What becomes of an old row that a page brings while everything is read again. */
export type Mode = "" | "replace" | "merge" | "restore";

/** Where the client reads on, its clock, and what it is in the middle of. */
export interface Position {
  readonly cursor: Stamp;
  /** The gateway that the client belongs to, and its last restore; empty until one has answered. */
  readonly epoch: string;
  /** The rules and claims that decided what it holds. */
  readonly scope: string;
  /** Where a snapshot of rows goes on; empty if none is being read. */
  readonly snapshot: string;
  readonly mode: Mode;
  /** Rows read before this number are old: they are being read again. */
  readonly generation: number;
  /** By table, the stamp up to which deletions may be forgotten. */
  readonly horizons: Readonly<Record<string, Stamp>>;
  /** The greatest stamp that is known to be at the gateway. */
  readonly floor: Stamp;
  /** What to add to the device's clock to get the gateway's. */
  readonly offsetMs: number;
  readonly schemas: Schemas;
  /** What identifies the schemas that were read last. */
  readonly schemasOf: string;
  readonly syncedMs: number;
}

export interface Schemas {
  readonly tables: readonly {
    readonly table: string;
    readonly deleteWins?: boolean;
    readonly columns?: readonly { readonly name: string; readonly type: string }[];
  }[];
}

export const START: Position = {
  cursor: 0n,
  epoch: "",
  scope: "",
  snapshot: "",
  mode: "",
  generation: 0,
  horizons: {},
  floor: 0n,
  offsetMs: 0,
  schemas: { tables: [] },
  schemasOf: "",
  syncedMs: 0,
};

/** A table of the app; its key is its name in lower case. */
export interface Table {
  readonly name: string;
  /** Its columns, as the gateway spells them. */
  readonly columns: readonly string[];
  /** The generation in which its rows are current. */
  readonly generation: number;
  /** The types that the app has declared, by columns; undefined if it has not. */
  readonly types?: Readonly<Record<string, string>>;
  readonly indexes?: readonly Index[];
}

/** A declared index of a table. */
export interface Index {
  /** Its table, its columns, and their types: with others it is another index. */
  readonly id: string;
  readonly columns: readonly string[];
  /** Whether all rows are in it. */
  readonly isWhole: boolean;
}

/** What pages had shown of a row with own writes that they had not; null if that is not known. */
export interface Unread {
  readonly accepted: Stamp;
  readonly known: State | null;
}

export interface Row {
  readonly state: State;
  /** The state without the row's edits in the outbox; null if none waits. */
  readonly base: State | null;
  /** Edits of the row in the outbox. */
  readonly waiting: number;
  /** Of a tombstone, the cursor of the first pull to the end behind it; 0 before that. */
  readonly tombstone: Stamp | null;
  /** The generation in which a page brought it. */
  readonly generation: number;
  /** Own accepted writes that no page has shown: by stamp, the commit that has each at the latest. */
  readonly echoes: ReadonlyMap<Stamp, Stamp>;
  readonly unread: Unread | null;
}

export const NO_ROW: Row = {
  state: EMPTY,
  base: null,
  waiting: 0,
  tombstone: null,
  generation: Number.MAX_SAFE_INTEGER,
  echoes: new Map(),
  unread: null,
};

export const known = (row: Row): State => row.base ?? row.state;
export const isStored = (row: Row): boolean => row.base !== null || !isEmpty(row.state);

export type Status =
  /** It waits for its first push. */
  | "pending"
  /** It was pushed, and no answer came yet. */
  | "sent"
  /** It was pushed without an answer, and no page since has it. */
  | "unseen"
  /** The same, and refused as late: it cannot arrive any more. */
  | "late"
  /** It was refused, and waits for the app. */
  | "quarantined"
  /** It was accepted, and perhaps lost by a restore: that is not known yet. */
  | "held_back"
  /** The same, and no page has it; parts of the log could not be read. */
  | "offered"
  /** The same, and it would have been read. */
  | "lost";

export const IN_DOUBT: ReadonlySet<Status> = new Set<Status>(["sent", "unseen", "late"]);

/** An edit that the gateway is not known to have. */
export interface Entry {
  readonly delta: Delta;
  readonly status: Status;
  /** The stamp that it had at first, if it was stamped again. */
  readonly first?: Stamp;
  /** The first stamp of its local transaction; null if it stands alone. */
  readonly txn: Stamp | null;
  /** Why it was refused, or what stops it on its way; empty if nothing does. */
  readonly code: string;
  readonly message: string;
}

/** An own write that rules hide: kept for the case that a restore loses it. */
export interface Hidden {
  readonly delta: Delta;
  readonly at: Stamp;
}

/** Two writes of one value that did not know each other, of which one lost. */
export interface Conflict {
  readonly table: string;
  readonly rowId: string;
  readonly column: string;
  readonly own: string | null;
  readonly ownHlc: Stamp;
  readonly other: string | null;
  readonly otherHlc: Stamp;
  readonly otherClient: string;
  readonly base: string | null;
  readonly won: boolean;
  readonly deleted: boolean;
  readonly hidden: boolean;
}

export const fold = (name: string): string => name.toLowerCase();

/** Everything that is stored but the rows. */
export interface Memory {
  position: Position;
  tables: Map<string, Table>;
  outbox: Map<Stamp, Entry>;
  journal: Map<string, Hidden>;
  conflicts: Map<string, Conflict>;
  /** The last stamp that was issued; not stored. */
  last: Stamp;
}

export const newMemory = (): Memory => ({
  position: START,
  tables: new Map(),
  outbox: new Map(),
  journal: new Map(),
  conflicts: new Map(),
  last: 0n,
});

/** A row's key: its table's key, a line break, which no table has, and its id. */
export const rowKey = (table: string, rowId: string): string => `${fold(table)}\n${rowId}`;
export const tableOf = (key: string): string => key.slice(0, key.indexOf("\n"));
export const idOf = (key: string): string => key.slice(key.indexOf("\n") + 1);

/** What is found by an index: own writes and notes that no page has shown, and tombstones. */
export type Mark = "echo" | "unread" | "tombstone";

/** The rows that a transaction reads. */
export interface Needs {
  readonly keys?: Iterable<string>;
  readonly marks?: readonly Mark[];
  /** Whole tables, by their keys. */
  readonly tables?: readonly string[];
  /** The rows that are being read again. */
  readonly old?: boolean;
  readonly all?: boolean;
  /** Whether what is written may be lost with the power: it is read again, and only then known. */
  readonly isReadAgain?: boolean;
}

export const marksOf = (row: Row): Mark[] => [
  ...(row.echoes.size ? (["echo"] as const) : []),
  ...(row.unread ? (["unread"] as const) : []),
  ...(row.tombstone !== null && row.base === null ? (["tombstone"] as const) : []),
];

/** What a transaction wrote: new contents by key, null for what is gone. */
export interface Writes {
  position: Position | null;
  tables: Map<string, Table>;
  outbox: Map<Stamp, Entry | null>;
  journal: Map<string, Hidden | null>;
  conflicts: Map<string, Conflict | null>;
  rows: Map<string, Row | null>;
}

/** One transaction on what is stored. */
export class Work {
  /** Tables whose rows an app sees otherwise now. */
  readonly changed = new Set<string>();
  /** The rows that are others now. */
  private readonly changedRows = new Set<string>();
  /** Tables whose types are others now. */
  private readonly reread = new Set<string>();
  private readonly writes: Writes = {
    position: null,
    tables: new Map(),
    outbox: new Map(),
    journal: new Map(),
    conflicts: new Map(),
    rows: new Map(),
  };
  private last: Stamp;
  private sorted: readonly Entry[] | null = null;
  private ofRow: ReadonlyMap<string, readonly Delta[]> | null = null;

  /**
   * @param rows - the rows that it may read: those that are stored of the ones it asked for
   */
  constructor(
    private readonly memory: Memory,
    readonly clientId: string,
    private readonly rows: ReadonlyMap<string, Row>,
    /** The device's clock. */
    readonly deviceMs: number,
  ) {
    this.last = memory.last;
  }

  /** Make it the state of the client, once its writes are durable. */
  commit(): Writes {
    const { memory, writes } = this;
    memory.position = this.position;
    memory.last = this.last;
    merged(memory.tables, writes.tables);
    merged(memory.outbox, writes.outbox);
    merged(memory.journal, writes.journal);
    merged(memory.conflicts, writes.conflicts);
    return writes;
  }

  /** The rows that an app sees otherwise now, unless whole tables are read otherwise. */
  get rowsChanged(): ReadonlyMap<string, Row | null> {
    const { rows } = this.writes;
    const keys = [...this.changedRows].filter((key) => !this.reread.has(tableOf(key)));
    return new Map(keys.map((key) => [key, rows.get(key) ?? null]));
  }

  get written(): Writes {
    return this.writes;
  }

  // --- position and clock -------------------------------------------------------------------------

  get position(): Position {
    return this.writes.position ?? this.memory.position;
  }

  set(part: Partial<Position>): void {
    if (part.schemas) for (const [table] of this.tables) this.readOtherwise(table);
    this.writes.position = { ...this.position, ...part };
  }

  get serverMs(): number {
    return this.deviceMs + this.position.offsetMs;
  }

  /** A stamp above everything that was issued or read. */
  now(): Stamp {
    this.last = next(this.last, this.serverMs);
    return this.last;
  }

  /** Note that a stamp is at the gateway. */
  accepted(known: Stamp): void {
    if (known <= this.position.floor) return;
    this.set({ floor: known });
    this.last = max(this.last, known);
  }

  /** Reset the clock to what is known, so that edits can be stamped again. */
  stepBack(): void {
    this.last = lastOf(this.position, this.entries());
  }

  /** Learn the gateway's time from an answer, between whose sending and receiving it was read. */
  correct(serverMs: number, sentMs: number): void {
    const receivedMs = this.deviceMs;
    if (!serverMs || receivedMs < sentMs) return;
    const offsetMs = Math.min(
      Math.max(this.position.offsetMs, serverMs - receivedMs),
      serverMs - sentMs,
    );
    if (offsetMs !== this.position.offsetMs) this.set({ offsetMs });
  }

  // --- tables -------------------------------------------------------------------------------------

  table(name: string): Table | undefined {
    return this.writes.tables.get(fold(name)) ?? this.memory.tables.get(fold(name));
  }

  /** Note that all rows of a table are read otherwise, by its key. */
  readOtherwise(table: string): void {
    this.changed.add(table);
    this.reread.add(table);
  }

  putTable(table: Table): void {
    this.writes.tables.set(fold(table.name), table);
  }

  get tables(): [string, Table][] {
    return [...new Map([...this.memory.tables, ...this.writes.tables])];
  }

  deleteWins(table: string): boolean {
    return deleteWins(this.position.schemas, table);
  }

  // --- rows ---------------------------------------------------------------------------------------

  row(key: string): Row {
    const written = this.writes.rows.get(key);
    return written === undefined ? (this.rows.get(key) ?? NO_ROW) : (written ?? NO_ROW);
  }

  /** The rows that were asked for, as they are now. */
  *loaded(table?: string): Generator<[string, Row]> {
    const keys = new Set([...this.rows.keys(), ...this.writes.rows.keys()]);
    for (const key of keys) {
      if (table === undefined || tableOf(key) === table) yield [key, this.row(key)];
    }
  }

  putRow(key: string, part: Partial<Row>): void {
    const before = this.row(key);
    const isNew = before === NO_ROW;
    const row: Row = { ...before, ...part };
    const generation = isNew ? this.position.generation : row.generation;
    const isNothing = !isStored(row) && !row.echoes.size && !row.unread;
    if (before.state !== row.state) {
      this.changed.add(tableOf(key));
      this.changedRows.add(key);
    }
    this.writes.rows.set(key, isNothing ? null : { ...row, generation });
  }

  /** Whether a row is from before everything is read again. */
  isOld(key: string): boolean {
    const row = this.row(key);
    return isStored(row) && row.generation < (this.table(tableOf(key))?.generation ?? 0);
  }

  // --- outbox -------------------------------------------------------------------------------------

  /** All entries, in stamp order. */
  entries(): readonly Entry[] {
    this.sorted ??= alive(this.memory.outbox, this.writes.outbox)
      .map(([, entry]) => entry)
      .sort((one, other) => (one.delta.hlc < other.delta.hlc ? -1 : 1));
    return this.sorted;
  }

  entry(hlc: Stamp): Entry | null {
    const written = this.writes.outbox.get(hlc);
    return written === undefined ? (this.memory.outbox.get(hlc) ?? null) : written;
  }

  putEntry(entry: Entry): void {
    this.replaceEntry(entry.delta.hlc, entry);
  }

  dropEntry(hlc: Stamp): void {
    this.replaceEntry(hlc, null);
  }

  private replaceEntry(hlc: Stamp, entry: Entry | null): void {
    this.writes.outbox.set(hlc, entry);
    this.sorted = this.ofRow = null;
  }

  /** The edits of a row that wait, in stamp order. */
  waiting(key: string): readonly Delta[] {
    // A page may ask for each of a thousand rows, while thousands of edits wait.
    this.ofRow ??= grouped(this.entries());
    return this.ofRow.get(key) ?? [];
  }

  // --- journal and conflicts ----------------------------------------------------------------------

  get journal(): [string, Hidden][] {
    return alive(this.memory.journal, this.writes.journal);
  }

  putHidden(hidden: Hidden): void {
    const { table, rowId, hlc } = hidden.delta;
    const key = `${hlc}\n${rowKey(table, rowId)}`;
    const written = this.writes.journal.get(key);
    if (written || (written === undefined && this.memory.journal.has(key))) return;
    this.writes.journal.set(key, hidden);
  }

  replaceHidden(key: string, hidden: Hidden | null): void {
    this.writes.journal.set(key, hidden);
  }

  get conflicts(): [string, Conflict][] {
    return alive(this.memory.conflicts, this.writes.conflicts);
  }

  putConflict(key: string, conflict: Conflict | null): void {
    this.writes.conflicts.set(key, conflict);
  }
}

export const deleteWins = (schemas: Schemas, table: string): boolean =>
  schemas.tables.some((each) => each.deleteWins === true && fold(each.table) === fold(table));

/** The last stamp that a client can have issued, from what is stored. */
export function lastOf(position: Position, entries: Iterable<Entry>): Stamp {
  let last = position.floor;
  for (const entry of entries) last = max(last, entry.delta.hlc);
  return last;
}

/** About how many bytes an edit takes in a push. */
export const sizeOf = (entry: Entry): number =>
  entry.delta.columns.reduce(
    (size, [name, value]) => size + name.length + byteLength(value) + 6,
    0,
  ) +
  byteLength(entry.delta.table + entry.delta.rowId + entry.delta.clientId) +
  90;

/** The entry of a delta of this client, if it is the same change. */
export function same(entry: Entry | null, id: string): entry is Entry {
  return entry !== null && deltaId(entry.delta) === id;
}

function grouped(entries: readonly Entry[]): Map<string, Delta[]> {
  const groups = new Map<string, Delta[]>();
  for (const { delta } of entries) {
    const key = rowKey(delta.table, delta.rowId);
    const group = groups.get(key);
    if (group) group.push(delta);
    else groups.set(key, [delta]);
  }
  return groups;
}

export function merged<K, V>(target: Map<K, V>, writes: ReadonlyMap<K, V | null>): void {
  for (const [key, value] of writes) {
    if (value === null) target.delete(key);
    else target.set(key, value);
  }
}

function alive<K, V>(stored: ReadonlyMap<K, V>, writes: ReadonlyMap<K, V | null>): [K, V][] {
  const all = new Map<K, V | null>([...stored, ...writes]);
  return [...all].filter((pair): pair is [K, V] => pair[1] !== null);
}

export const notFound = (what: string, field = "deltaId"): Error =>
  fault("NOT_FOUND", `no ${what} has this id`, field);
