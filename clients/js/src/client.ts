/** The client: rows on the device, edited at once, and synced when there is a network. */

import { amend, discard, rebind, retry, write, type Edit } from "./edits.js";
import { fault, LakeSyncError } from "./errors.js";
import { Http, type Address } from "./http.js";
import { parse, type Value } from "./json.js";
import { asRead, deltaId, view, type Delta } from "./merge.js";
import { keyOf } from "./rows.js";
import {
  deleteWins,
  fold,
  rowKey,
  type Conflict,
  type Entry,
  type Needs,
  type Row,
  type Work,
} from "./state.js";
import { IndexedStorage, MemoryStorage, type Storage } from "./storage.js";
import { Syncer, type Mode, type Syncing } from "./sync.js";

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
export type RowValues = Readonly<Record<string, Value>>;

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

export interface Query {
  readonly table: string;
  /** Columns with the value that each must have. */
  readonly where?: RowValues;
  /** A column, or several; with `-` before its name in descending order. */
  readonly order?: string | readonly string[];
  readonly limit?: number;
}

export type QueriedRow = RowValues & { readonly _row_id: string };

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
    const name = options.name ?? `lakesync ${options.gateway} ${options.clientId}`;
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
    const { result, changed } = await this.storage.transaction(body, needs);
    this.tell(changed);
    if (this.isConnected && !this.failures) this.plan(EDITED_MS);
    return result;
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
    return entries.sort((one, other) => (one.delta.hlc < other.delta.hlc ? -1 : 1)).map(shownEntry);
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
  conflicts(): readonly Conflict[] {
    return [...this.storage.memory.conflicts.values()];
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
      const row = await this.storage.row(rowKey(table, rowId));
      return row ? this.valuesOf(table, row) : null;
    });
  }

  /** The rows of a table that have some values, in an order. */
  query(query: Query): Promise<Result<readonly QueriedRow[]>> {
    return attempt(async () => {
      const rows: QueriedRow[] = [];
      for (const [rowId, row] of await this.storage.rows(fold(query.table))) {
        const values = this.valuesOf(query.table, row);
        if (values && matches(values, query.where)) rows.push({ ...values, _row_id: rowId });
      }
      const order = typeof query.order === "string" ? [query.order] : (query.order ?? []);
      return rows.sort(ordered(order)).slice(0, query.limit);
    });
  }

  private valuesOf(table: string, row: Row): RowValues | null {
    const state = asRead(row.state, deleteWins(this.storage.memory.position.schemas, table));
    const columns = view(state);
    return columns && Object.fromEntries([...columns].map(([name, text]) => [name, parse(text)]));
  }

  /**
   * Be told the rows of a query, now and whenever they change; call what it returns to end it.
   *
   * @param onError - told when they could not be read; the watch goes on
   */
  watch(
    query: Query,
    onRows: (rows: readonly QueriedRow[]) => void,
    onError?: (error: LakeSyncError) => void,
  ): () => void {
    let shown = "";
    let isOver = false;
    const look = async (): Promise<void> => {
      const result = await this.query(query);
      if (isOver) return;
      if (!result.ok) {
        onError?.(result.error);
        return;
      }
      const text = JSON.stringify(result.value);
      if (text !== shown) onRows(result.value);
      shown = text;
    };
    const end = this.onChange((tables) => {
      if (tables.has(fold(query.table))) void look();
    });
    void look();
    return () => {
      isOver = true;
      end();
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

  private tell(changed: ReadonlySet<string>): void {
    if (changed.size) for (const listener of this.listeners) listener(changed);
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
          this.tell(done.changed);
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
      this.disconnect();
      await this.storage.wipe();
    });
  }
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

async function attempt<T>(body: () => Promise<T>): Promise<Result<T>> {
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

const shownEntry = (entry: Entry): OutboxEntry => ({
  deltaId: deltaId(entry.delta),
  op: entry.delta.op,
  table: entry.delta.table,
  rowId: entry.delta.rowId,
  columns: Object.fromEntries(entry.delta.columns.map(([name, text]) => [name, parse(text)])),
  code: entry.code,
  reason: entry.message,
});

const matches = (values: RowValues, where: RowValues = {}): boolean =>
  Object.entries(where).every(
    ([name, value]) => JSON.stringify(values[name] ?? null) === JSON.stringify(value),
  );

const ordered =
  (order: readonly string[]) =>
  (one: QueriedRow, other: QueriedRow): number => {
    for (const term of [...order, "_row_id"]) {
      const isDown = term.startsWith("-");
      const name = isDown ? term.slice(1) : term;
      const [left, right] = [one[name] ?? null, other[name] ?? null];
      if (left === right) continue;
      const isLess = left === null || (right !== null && left < right);
      return isLess === isDown ? 1 : -1;
    }
    return 0;
  };

function waitAfter(error: LakeSyncError, failures: number): number {
  const most = error.isForeign ? FOREIGN_MS_MAX : BACKOFF_MS_MAX;
  const least = Math.min(error.retryAfterS * 1_000, most);
  const ceiling = Math.min(most, BACKOFF_MS_MIN * 2 ** Math.min(failures, 16));
  return error.retry === "never"
    ? most / 2
    : Math.max(least, Math.min(most, least + Math.random() * ceiling));
}
