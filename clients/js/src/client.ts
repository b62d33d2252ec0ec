/** The client: rows on the device, edited at once, and synced when there is a network. */

import { amend, discard, rebind, resolve, retry, write, type Edit, type Keep } from "./edits.js";
import { fault, LakeSyncError } from "./errors.js";
import { Http, type Address } from "./http.js";
import { declare, typesOf, type DeclaredColumns } from "./declared.js";
import { deltaId, type Delta } from "./merge.js";
import {
  answer,
  asked,
  readingOf,
  seen,
  shown,
  type QueriedRow,
  type Query,
  type RowValues,
} from "./query.js";
import { keyOf } from "./rows.js";
import {
  fold,
  rowKey,
  type Conflict,
  type Entry,
  type Memory,
  type Needs,
  type Work,
} from "./state.js";
import { IndexedStorage, MemoryStorage, type Done, type Storage } from "./storage.js";
import { Syncer, type Mode, type Syncing } from "./sync.js";
import { cells, decoded, type Cell, type Types } from "./values.js";
import { Watched } from "./watch.js";

export type { QueriedRow, Query, RowValues };

/** What an operation gives: a value, or why there is none. Nothing is thrown. */
export type Result<T> =
  { readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: LakeSyncError };

export interface Options extends Address {
  /** The name of the database in the browser. */
  readonly name?: string;
  /** Deltas of one page, 1 to 10,000. */
  readonly pageDeltas?: number;
  /** Tables that a first sync reads first. */
  readonly firstTables?: readonly string[];
  /** Keep nothing when the page is closed. */
  readonly inMemory?: boolean;
  /** The device's clock, in milliseconds since 1970; it may be wrong. */
  readonly now?: () => number;
}

export type Columns = Readonly<Record<string, unknown>>;

/** An edit that waits for the gateway, or for the app. */
export interface OutboxEntry {
  readonly deltaId: string;
  readonly op: string;
  readonly table: string;
  readonly rowId: string;
  readonly columns: RowValues;
  /** Why it was refused; empty if it was not. */
  readonly code: string;
  readonly reason: string;
}

/** A conflict, with the values as its column gives them. */
export type ShownConflict = Omit<Conflict, "own" | "other" | "base"> & {
  /** By which it is resolved. */
  readonly id: string;
  readonly own: Cell;
  readonly other: Cell;
  readonly base: Cell;
};

export interface Status {
  /** Edits that the gateway is not known to have. */
  readonly waiting: number;
  readonly quarantined: number;
  readonly conflicts: number;
  /** Whether a pull has reached the end at least once. */
  readonly hasSynced: boolean;
  readonly lastError: LakeSyncError | null;
  /** Whether the data outlives the page: false in private windows, and where storage is blocked. */
  readonly isDurable: boolean;
}

/** What the other entries of this package build on. */
export interface Inside {
  /** The name of the client's database. */
  readonly name: string;
  readonly address: Address;
  readonly clientId: string;
  /** The device's clock. */
  readonly now: () => number;
  readonly memory: Memory;
  readonly isDurable: boolean;
  /** Whether it syncs in the background. */
  readonly isConnected: boolean;
  /** Be asked before the client is wiped, and be wiped with it; call what it returns to end it. */
  readonly join: (besides: Besides) => () => void;
}

/** What is stored beside the client. */
export interface Besides {
  /** What waits, for people; empty if nothing does. */
  waiting(): Promise<string>;
  wipe(): Promise<void>;
}

/** Edits of one local transaction. */
export interface Transaction {
  insert(table: string, rowId: string, columns?: Columns): void;
  update(table: string, rowId: string, columns: Columns): void;
  delete(table: string, rowId: string): void;
}

const EVERY_MS = 10_000;
const EDITED_MS = 200;
const BACKOFF_MS_MIN = 1_000;
const BACKOFF_MS_MAX = 300_000;
const FOREIGN_MS_MAX = 15_000;

/** A browser's window or worker; Node has neither. */
const listenable = (globalThis as { self?: EventTarget }).self;

export class Client {
  private readonly listeners = new Set<(tables: ReadonlySet<string>) => void>();
  private readonly statusListeners = new Set<() => void>();
  private readonly watches = new Set<Watched>();
  private readonly besides = new Set<Besides>();
  private readonly http: Http;
  private readonly syncer: Syncer;
  private syncing: Promise<unknown> = Promise.resolve();
  private lastError: LakeSyncError | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isConnected = false;
  private failures = 0;

  private constructor(
    private readonly options: Options,
    private readonly storage: Storage,
    private readonly release: () => void = () => undefined,
  ) {
    this.http = new Http(options);
    const { clientId, pageDeltas = 1_000, firstTables = [] } = options;
    this.syncer = new Syncer(clientId, pageDeltas, firstTables);
  }

  /**
   * Open the client's database in this browser; where storage is blocked, everything is in memory.
   *
   * One tab at a time may have it: another is answered `OPEN_IN_ANOTHER_TAB`.
   */
  static async open(options: Options): Promise<Result<Client>> {
    const device = { clientId: options.clientId, now: options.now ?? Date.now };
    const name = nameOf(options);
    return attempt(async () => {
      if (options.inMemory) return new Client(options, new MemoryStorage(device));
      const release = await owned(name);
      try {
        return new Client(options, await IndexedStorage.open(name, device), release);
      } catch (error) {
        release();
        if (!isBlocked(error)) throw error;
        return new Client(options, new MemoryStorage(device));
      }
    });
  }

  /**
   * Fix the types of a table's columns on this device; safe to repeat.
   *
   * They decide what an edit takes, and what is read. Until then the gateway's schema says what is read.
   * An index is for queries that fix its first columns by `where`, and are ordered by its others. It is
   * built before this is answered; the client may be used meanwhile.
   */
  declare(
    table: string,
    columns: DeclaredColumns,
    options: { readonly indexes?: readonly (readonly string[])[] } = {},
  ): Promise<Result<void>> {
    return attempt(async () => {
      await this.written(
        (work) => declare(work, table, columns, options.indexes ?? []),
        keysOf([{ op: "INSERT", table, rowId: "", columns }]),
      );
      await this.storage.buildIndexes?.(fold(table));
    });
  }

  // --- edits --------------------------------------------------------------------------------------

  /** Make a row exist, with these columns; an existing row keeps its others. */
  insert(table: string, rowId: string, columns: Columns = {}): Promise<Result<Delta>> {
    return this.edit({ op: "INSERT", table, rowId, columns });
  }

  /** Write at least one column of a row, whether or not this client has seen it. */
  update(table: string, rowId: string, columns: Columns): Promise<Result<Delta>> {
    return this.edit({ op: "UPDATE", table, rowId, columns });
  }

  /** Insert a row; the same as `insert`, by the name that others have for it. */
  upsert(table: string, rowId: string, columns: Columns): Promise<Result<Delta>> {
    return this.insert(table, rowId, columns);
  }

  delete(table: string, rowId: string): Promise<Result<Delta>> {
    return this.edit({ op: "DELETE", table, rowId });
  }

  /** Do several edits, all of them or none; they reach the gateway as one. */
  transaction(body: (edits: Transaction) => void): Promise<Result<readonly Delta[]>> {
    const edits: Edit[] = [];
    return attempt(async () => {
      body({
        insert: (table, rowId, columns = {}) => edits.push({ op: "INSERT", table, rowId, columns }),
        update: (table, rowId, columns) => edits.push({ op: "UPDATE", table, rowId, columns }),
        delete: (table, rowId) => edits.push({ op: "DELETE", table, rowId }),
      });
      return this.written((work) => write(work, edits), keysOf(edits));
    });
  }

  private edit(edit: Edit): Promise<Result<Delta>> {
    return attempt(
      async () => (await this.written((work) => write(work, [edit]), keysOf([edit])))[0]!,
    );
  }

  /** Write something, tell who listens, and sync soon. */
  private async written<T>(body: (work: Work) => T, needs: (work: Work) => Needs): Promise<T> {
    const done = await this.storage.transaction(body, needs);
    this.tell(done);
    if (this.isConnected && !this.failures) this.plan(EDITED_MS);
    return done.result;
  }

  // --- refused edits and conflicts ----------------------------------------------------------------

  pending(): readonly OutboxEntry[] {
    return this.outbox((entry) => entry.status !== "quarantined");
  }

  /** The edits that were refused: they stay visible until the app decides. */
  quarantined(): readonly OutboxEntry[] {
    return this.outbox((entry) => entry.status === "quarantined");
  }

  private outbox(which: (entry: Entry) => boolean): readonly OutboxEntry[] {
    const entries = [...this.storage.memory.outbox.values()].filter(which);
    return entries
      .sort((one, other) => (one.delta.hlc < other.delta.hlc ? -1 : 1))
      .map((entry) => shownEntry(entry, this.typesOf(entry.delta.table)));
  }

  /** Push a refused edit again. */
  retry(id: string): Promise<Result<void>> {
    return this.decide(id, (work, hlc) => retry(work, hlc));
  }

  /** Take an edit back: its row becomes what the others make of it. */
  discard(id: string): Promise<Result<void>> {
    return this.decide(id, (work, hlc) => discard(work, hlc));
  }

  /** Replace a refused edit by one made now, with other values for some of its columns. */
  amend(id: string, columns: Columns): Promise<Result<void>> {
    return this.decide(id, (work, hlc) => void amend(work, hlc, columns));
  }

  private decide(id: string, body: (work: Work, hlc: bigint) => void): Promise<Result<void>> {
    return attempt(async () => {
      const entries = [...this.storage.memory.outbox.values()];
      const entry = entries.find((each) => deltaId(each.delta) === id);
      if (!entry) throw fault("NOT_FOUND", "no edit has this id; list them again", "deltaId");
      const keys = [keyOf(entry.delta)];
      await this.written(
        (work) => body(work, entry.delta.hlc),
        () => ({ keys }),
      );
    });
  }

  /** Writes that were lost to others', or that others lost: until the app has resolved them. */
  conflicts(): readonly ShownConflict[] {
    return [...this.storage.memory.conflicts].map(([id, conflict]) => {
      const type = this.typesOf(conflict.table)[conflict.column];
      const value = (text: string | null): Cell => (text === null ? null : decoded(type, text));
      const { own, other, base } = conflict;
      return { ...conflict, id, own: value(own), other: value(other), base: value(base) };
    });
  }

  /**
   * Resolve a conflict: it is no longer listed.
   *
   * `mine` and `theirs` choose one of its values, `new` writes `value`. If the row shows the chosen
   * one, or a later one took the place of what lost, nothing is written; otherwise an edit is made
   * now, and returned. A deletion that is chosen deletes the row, and a value of a row that is gone
   * inserts it with that column.
   */
  resolve(id: string, keep: Keep, value: unknown = null): Promise<Result<Delta | null>> {
    return attempt(async () => {
      const conflict = this.storage.memory.conflicts.get(id);
      return this.written(
        (work) => resolve(work, id, keep, value),
        () => ({ keys: conflict ? [rowKey(conflict.table, conflict.rowId)] : [] }),
      );
    });
  }

  private typesOf(table: string): Types {
    const { tables, position } = this.storage.memory;
    return typesOf(tables.get(fold(table)), position.schemas, table);
  }

  /** Give everything to the next gateway that answers; returns how many edits were kept. */
  rebind(keep: "edits" | "nothing"): Promise<Result<number>> {
    return attempt(() =>
      this.written(
        (work) => rebind(work, keep),
        () => ({ all: true }),
      ),
    );
  }

  // --- reading ------------------------------------------------------------------------------------

  /** A row's columns; null if there is none. */
  get(table: string, rowId: string): Promise<Result<RowValues | null>> {
    return attempt(async () => {
      const reading = readingOf(this.storage.memory, table);
      const row = await this.storage.row(rowKey(table, rowId));
      const columns = row && seen(reading, row);
      return columns ? cells(reading.types, columns) : null;
    });
  }

  /** The rows of a table that have some values, in an order. */
  query(query: Query): Promise<Result<readonly QueriedRow[]>> {
    return attempt(async () => {
      const question = asked(this.storage.memory, query);
      const rows = await answer(this.storage, question);
      return rows.map((each) => shown(question, each));
    });
  }

  /**
   * Be told the rows of a query, now and whenever they change; call what it returns to end it.
   *
   * A row that stays as it was is the same object again.
   *
   * @param onError - told when they could not be read; the watch goes on
   */
  watch(
    query: Query,
    onRows: (rows: readonly QueriedRow[]) => void,
    onError?: (error: LakeSyncError) => void,
  ): () => void {
    const watched = new Watched(this.storage, query, onRows, onError);
    this.watches.add(watched);
    return () => {
      watched.end();
      this.watches.delete(watched);
    };
  }

  /** Be told which tables changed; call what it returns to end it. */
  onChange(listener: (tables: ReadonlySet<string>) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /**
   * Be told that `status`, `pending`, `quarantined` or `conflicts` may have changed; call what it
   * returns to end it.
   */
  onStatus(listener: () => void): () => void {
    this.statusListeners.add(listener);
    return () => this.statusListeners.delete(listener);
  }

  private tell({ changed, rows }: Done<unknown>): void {
    if (changed.size) {
      for (const watched of this.watches) watched.hear({ tables: changed, rows });
      for (const listener of this.listeners) listener(changed);
    }
    this.tellStatus();
  }

  private tellStatus(): void {
    for (const listener of this.statusListeners) listener();
  }

  get status(): Status {
    const { outbox, conflicts, position } = this.storage.memory;
    const quarantined = this.quarantined().length;
    return {
      waiting: outbox.size - quarantined,
      quarantined,
      conflicts: conflicts.size,
      hasSynced: position.syncedMs > 0,
      lastError: this.lastError,
      isDurable: this.storage.isDurable,
    };
  }

  // --- syncing ------------------------------------------------------------------------------------

  /** Push and pull until nothing waits; one sync at a time. */
  sync(mode: Mode = "full"): Promise<Result<void>> {
    const done = this.syncing.then(() => attempt(() => this.run(this.syncer.sync(mode))));
    this.syncing = done;
    return done.then((result) => {
      this.lastError = result.ok ? null : result.error;
      this.tellStatus();
      return result;
    });
  }

  private async run<T>(syncing: Syncing<T>): Promise<T> {
    let step = syncing.next();
    while (!step.done) {
      const effect = step.value;
      let answer: unknown;
      try {
        if ("request" in effect) {
          answer = await this.http.send(effect.request);
        } else if ("transaction" in effect) {
          const done = await this.storage.transaction(effect.transaction, effect.needs);
          this.tell(done);
          answer = done.result;
        } else {
          answer = (this.options.now ?? Date.now)();
        }
      } catch (error) {
        step = syncing.throw(error);
        continue;
      }
      step = syncing.next(answer);
    }
    return step.value;
  }

  /** Sync in the background: now, after edits, and every ten seconds. */
  connect(): void {
    if (this.isConnected) return;
    this.isConnected = true;
    listenable?.addEventListener("online", this.wake);
    this.plan(0);
  }

  disconnect(): void {
    this.isConnected = false;
    listenable?.removeEventListener("online", this.wake);
    clearTimeout(this.timer);
  }

  private readonly wake = (): void => {
    this.syncer.hurry();
    this.plan(0);
  };

  private plan(waitMs: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.background(), waitMs);
  }

  private async background(): Promise<void> {
    const result = await this.sync();
    if (!this.isConnected) return;
    this.failures = result.ok ? 0 : this.failures + 1;
    this.plan(
      result.ok ? EVERY_MS * (0.9 + 0.2 * Math.random()) : waitAfter(result.error, this.failures),
    );
  }

  /** What the other entries of this package build on; not for apps. */
  get inside(): Inside {
    const { options, storage, isConnected } = this;
    return {
      name: nameOf(options),
      address: options,
      clientId: options.clientId,
      now: options.now ?? Date.now,
      memory: storage.memory,
      isDurable: storage.isDurable,
      isConnected,
      join: (besides) => {
        this.besides.add(besides);
        return () => this.besides.delete(besides);
      },
    };
  }

  // --- the end ------------------------------------------------------------------------------------

  close(): void {
    this.disconnect();
    this.storage.close();
    this.release();
  }

  /** Remove everything from this browser; refused while edits wait, unless they may be lost. */
  wipe(options: { readonly loseEdits?: boolean } = {}): Promise<Result<void>> {
    return attempt(async () => {
      const waiting = this.storage.memory.outbox.size;
      if (waiting && !options.loseEdits) {
        throw fault("CONFLICT", `${waiting} edits have not reached the gateway; sync first`);
      }
      for (const besides of options.loseEdits ? [] : this.besides) {
        const what = await besides.waiting();
        if (what) throw fault("CONFLICT", `${what}; sync first`);
      }
      this.disconnect();
      await this.storage.wipe();
      for (const besides of this.besides) await besides.wipe();
      if (this.storage.isDurable) removeBesides(nameOf(this.options));
    });
  }
}

const nameOf = ({ name, gateway, clientId }: Options): string =>
  name ?? `lakesync ${gateway} ${clientId}`;

/** Remove what is stored beside a client by tabs that are gone. */
function removeBesides(name: string): void {
  for (const what of ["actions", "attachments"]) indexedDB.deleteDatabase(`${name} ${what}`);
}

/** Own a database, as its only tab; returns what gives it up. */
async function owned(name: string): Promise<() => void> {
  const locks = (globalThis as { navigator?: Partial<Navigator> }).navigator?.locks;
  if (!locks) return () => undefined;
  return new Promise((resolve, reject) => {
    void locks.request(`lakesync ${name}`, { ifAvailable: true }, (lock) => {
      if (!lock) {
        reject(
          fault(
            "OPEN_IN_ANOTHER_TAB",
            "another tab of this browser has the client open: use it there",
          ),
        );
        return undefined;
      }
      return new Promise<void>((end) => resolve(() => end()));
    });
  });
}

export async function attempt<T>(body: () => Promise<T>): Promise<Result<T>> {
  try {
    return { ok: true, value: await body() };
  } catch (error) {
    if (error instanceof LakeSyncError) return { ok: false, error };
    throw error;
  }
}

const isBlocked = (error: unknown): boolean =>
  typeof indexedDB === "undefined" ||
  (error instanceof LakeSyncError && error.code === "STORAGE_FAILED") ||
  (error instanceof DOMException && error.name === "SecurityError");

const keysOf =
  (edits: readonly Edit[]) =>
  (work: Work): Needs => ({
    keys: edits.map(({ table, rowId }) => rowKey(table, rowId)),
    tables: edits
      .filter(({ table, columns }) => isRespelled(work, table, Object.keys(columns ?? {})))
      .map(({ table }) => fold(table)),
  });

const isRespelled = (work: Work, table: string, columns: readonly string[]): boolean => {
  const names = work.table(table)?.columns ?? [];
  return columns.some(
    (name) => !names.includes(name) && names.some((other) => fold(other) === fold(name)),
  );
};

const shownEntry = (entry: Entry, types: Types): OutboxEntry => ({
  deltaId: deltaId(entry.delta),
  op: entry.delta.op,
  table: entry.delta.table,
  rowId: entry.delta.rowId,
  columns: cells(types, new Map(entry.delta.columns)),
  code: entry.code,
  reason: entry.message,
});

function waitAfter(error: LakeSyncError, failures: number): number {
  const most = error.isForeign ? FOREIGN_MS_MAX : BACKOFF_MS_MAX;
  const least = Math.min(error.retryAfterS * 1_000, most);
  const ceiling = Math.min(most, BACKOFF_MS_MIN * 2 ** Math.min(failures, 16));
  return error.retry === "never"
    ? most / 2
    : Math.max(least, Math.min(most, least + Math.random() * ceiling));
}
