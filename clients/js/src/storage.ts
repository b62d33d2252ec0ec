/**
 * Where a client's state is: in IndexedDB, or in memory where a browser has none for us.
 *
 * A transaction loads the rows that it needs, runs, and is durable before it is answered, or has not
 * happened. Transactions follow each other: one at a time. Several tabs may read a database; one of
 * them writes. Each that begins to write raises the *term*, and each transaction compares it: so a
 * tab that was replaced, and does not know it yet, changes nothing.
 */

import { built, unbuilt } from "./declared.js";
import { fault, LakeSyncError } from "./errors.js";
import { entriesOf, type Entry as Places, type Range } from "./indexes.js";
import type { Stamp } from "./stamp.js";
import {
  idOf,
  lastOf,
  marksOf,
  merged,
  newMemory,
  START,
  tableOf,
  Work,
  type Conflict,
  type Entry,
  type Hidden,
  type Memory,
  type Needs,
  type Position,
  type Row,
  type Table,
  type Writes,
} from "./state.js";

export interface Done<T> {
  readonly result: T;
  /** The tables, by their keys, whose rows an app sees otherwise now. */
  readonly changed: ReadonlySet<string>;
  /** These rows, null for what is gone; a table of which there are none is read otherwise. */
  readonly rows: ReadonlyMap<string, Row | null>;
  readonly writes: Small;
}

/** What a transaction wrote of what every tab has in memory. */
export type Small = Pick<Writes, "position" | "tables" | "outbox" | "conflicts">;

/** The name of a request of another tab, which may be repeated, and is done once. */
export interface Repeat {
  readonly tab: string;
  readonly number: number;
  /** That tab has the answers of all requests below this number. */
  readonly answered: number;
}

export interface Storage {
  readonly memory: Memory;
  /** Whether it outlives the page. */
  readonly isDurable: boolean;
  /**
   * Do something durably, or not at all.
   *
   * @param repeat - if it was done under this name before, its result is returned, and nothing done
   */
  transaction<T>(
    body: (work: Work) => T,
    needs?: (work: Work) => Needs,
    repeat?: Repeat,
  ): Promise<Done<T>>;
  row(key: string): Promise<Row | undefined>;
  /** All rows of a table by their ids. */
  rows(table: string): Promise<[string, Row][]>;
  /** The rows of a part of an index, by their keys. */
  find?(range: Range): Promise<[string, Row][]>;
  /** Put the rows of a table into its indexes; it may be used meanwhile. */
  buildIndexes?(table: string): Promise<void>;
  close(): void;
  /** Remove everything. */
  wipe(): Promise<void>;
}

/** What a storage needs to know of the device. */
export interface Device {
  readonly clientId: string;
  readonly now: () => number;
}

const NOTHING: Needs = {};

const isEmpty = (writes: Writes): boolean =>
  !writes.position &&
  ![writes.tables, writes.outbox, writes.journal, writes.conflicts, writes.rows].some(
    (map) => map.size,
  );

const asksNothing = (needs: Needs): boolean => Object.keys(needs).length === 0;

const doneBy = <T>(work: Work, result: T): Done<T> => ({
  result,
  changed: work.changed,
  rows: work.rowsChanged,
  writes: work.written,
});

// --- in memory ------------------------------------------------------------------------------------

export class MemoryStorage implements Storage {
  readonly memory = newMemory();
  readonly isDurable = false;
  private readonly all = new Map<string, Row>();

  constructor(private readonly device: Device) {}

  transaction<T>(body: (work: Work) => T): Promise<Done<T>> {
    return asPromise(() => this.run(body));
  }

  private run<T>(body: (work: Work) => T): Done<T> {
    const work = new Work(this.memory, this.device.clientId, this.all, this.device.now());
    const result = attempt(this.memory, () => body(work));
    for (const [key, row] of work.commit().rows) {
      if (row) this.all.set(key, row);
      else this.all.delete(key);
    }
    return doneBy(work, result);
  }

  row(key: string): Promise<Row | undefined> {
    return Promise.resolve(this.all.get(key));
  }

  rows(table: string): Promise<[string, Row][]> {
    const rows = [...this.all].filter(([key]) => tableOf(key) === table);
    return Promise.resolve(rows.map(([key, row]) => [idOf(key), row]));
  }

  close(): void {
    this.all.clear();
  }

  wipe(): Promise<void> {
    this.all.clear();
    Object.assign(this.memory, newMemory());
    return Promise.resolve();
  }
}

const asPromise = <T>(body: () => T): Promise<T> =>
  new Promise((resolve) => {
    resolve(body());
  });

/** Run a transaction's body; if it fails, the stamps that it issued were never given. */
function attempt<T>(memory: Memory, body: () => T): T {
  try {
    return body();
  } catch (error) {
    memory.last = lastOf(memory.position, memory.outbox.values());
    throw error;
  }
}

// --- in IndexedDB ---------------------------------------------------------------------------------

const LAYOUT = 3;
const SMALL = ["position", "tables", "outbox", "journal", "conflicts"] as const;
/** The term, and by tab and number the results of requests that may be repeated. */
const TABS = "tabs";
const STORES = [...SMALL, "rows", TABS];
const POSITION = "position";
const TERM = "term";
/** Rows of one transaction that builds an index: it keeps edits waiting for some milliseconds. */
const BUILT_ROWS_MAX = 500;
/** Rows that are written without letting the page do other things meanwhile. */
const PUT_AT_ONCE_MAX = 200;
/** From how many rows of a table on those between them are counted. */
const AT_ONCE_MIN = 16;
/** How many times as many rows are read rather than each by itself; and how many times as many keys. */
const READ_TOO_MAX = 3;
const KEYS_READ_TOO_MAX = 30;

/** A row as it is stored, with what its indexes read. */
interface StoredRow extends Row {
  readonly table: string;
  readonly marks: string[];
  /** Absent in what a release without indexes wrote. */
  readonly places?: readonly Places[];
}

const hex = (hlc: Stamp): string => hlc.toString(16).padStart(16, "0");
const ofTable = (table: string): IDBKeyRange => IDBKeyRange.bound(`${table}\n`, `${table}\n\uffff`);
const requestsOf = (tab: string, end = Infinity): IDBKeyRange =>
  IDBKeyRange.bound([tab, 0], [tab, end], false, true);

export class IndexedStorage implements Storage {
  readonly memory = newMemory();
  readonly isDurable = true;
  /** Which of those that wrote this one is; 0 if it only reads. */
  term = 0;
  /** Is called if it cannot go on: another tab writes, or the browser has closed the database. */
  onGone: (error: LakeSyncError) => void = () => undefined;
  private turn: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly database: IDBDatabase,
    private readonly device: Device,
  ) {
    // A newer release in another tab: it may not wait for this one.
    database.onversionchange = () => {
      database.close();
      this.onGone(isNewer());
    };
    database.onclose = () => this.onGone(failed("it was closed, or removed; reload the page"));
  }

  /** Open a client's database to write in it. */
  static async open(name: string, device: Device, factory?: IDBFactory): Promise<IndexedStorage> {
    const storage = await IndexedStorage.connect(name, device, factory);
    await storage.claim();
    return storage;
  }

  /** Open a client's database to read it, and read what is small. */
  static async connect(name: string, device: Device, factory = indexedDB): Promise<IndexedStorage> {
    const opening = tried(() => factory.open(name, LAYOUT));
    opening.onupgradeneeded = ({ oldVersion }) => {
      const { result } = opening;
      if (oldVersion < 1) {
        for (const store of SMALL) result.createObjectStore(store);
        const rows = result.createObjectStore("rows");
        rows.createIndex("marks", "marks", { multiEntry: true });
        rows.createIndex("age", ["table", "generation"]);
      }
      if (oldVersion < 2) {
        const rows = opening.transaction!.objectStore("rows");
        rows.createIndex("places", "places", { multiEntry: true });
      }
      result.createObjectStore(TABS);
    };
    const storage = new IndexedStorage(await answered(opening), device);
    await storage.reload();
    return storage;
  }

  /** Be the one that writes, instead of any other; returns whether nothing was stored before. */
  async claim(): Promise<boolean> {
    let before = 0;
    try {
      const transaction = this.begun();
      const end = ended(transaction);
      const tabs = transaction.objectStore(TABS);
      before = ((await read(tabs, TERM)) as number | undefined) ?? 0;
      tabs.put(before + 1, TERM);
      await end;
      this.term = before + 1;
    } catch (error) {
      // Without room nothing can be written, but all can be read.
      if (!(error instanceof LakeSyncError && error.code === "STORAGE_FULL")) throw error;
      this.term = before;
    }
    await this.reload();
    const { position, outbox } = this.memory;
    return !before && position === START && !outbox.size;
  }

  /** Read what is small again, as the tab that writes has left it. */
  async reload(): Promise<void> {
    Object.assign(this.memory, await loaded(this.reading(SMALL)));
  }

  /** Take over what the tab that writes has written. */
  follow(writes: Small): void {
    const { memory } = this;
    memory.position = writes.position ?? memory.position;
    merged(memory.tables, writes.tables);
    merged(memory.outbox, writes.outbox);
    merged(memory.conflicts, writes.conflicts);
  }

  transaction<T>(
    body: (work: Work) => T,
    needs?: (work: Work) => Needs,
    repeat?: Repeat,
  ): Promise<Done<T>> {
    return this.inTurn(() => this.run(body, needs, repeat));
  }

  private inTurn<T>(action: () => Promise<T>): Promise<T> {
    const done = this.turn.then(action);
    this.turn = done.catch(() => undefined);
    return done;
  }

  private async run<T>(
    body: (work: Work) => T,
    needs?: (work: Work) => Needs,
    repeat?: Repeat,
  ): Promise<Done<T>> {
    const { memory, device } = this;
    const begin = (rows: ReadonlyMap<string, Row>) =>
      new Work(memory, device.clientId, rows, device.now());
    const asked = needs?.(begin(new Map())) ?? NOTHING;
    let done: Done<T> | null = null;
    let work = begin(new Map());
    if (asksNothing(asked) && !repeat) {
      done = doneBy(
        work,
        attempt(memory, () => body(work)),
      );
      if (isEmpty(work.written)) {
        work.commit();
        return done;
      }
    }
    const transaction = this.begun(asked.isReadAgain ? "relaxed" : "strict");
    const end = ended(transaction);
    try {
      const tabs = transaction.objectStore(TABS);
      const stored = transaction.objectStore("rows");
      const [before, , rows] = await Promise.all([
        repeat && read(tabs, [repeat.tab, repeat.number]),
        this.checkTerm(transaction),
        load(stored, asked, memory),
      ]);
      if (before) return { ...doneBy(begin(rows), (before as { result: T }).result) };
      if (!done) {
        work = begin(rows);
        done = doneBy(
          work,
          attempt(memory, () => body(work)),
        );
      }
      await put(transaction, work);
      if (repeat) {
        tabs.put({ result: done.result }, [repeat.tab, repeat.number]);
        tabs.delete(requestsOf(repeat.tab, repeat.answered));
      }
    } catch (error) {
      aborted(transaction);
      throw error instanceof DOMException ? failed(error) : error;
    }
    await end;
    work.commit();
    return done;
  }

  /** Find in a transaction that no other tab writes; if one does, end it without its writes. */
  private async checkTerm(transaction: IDBTransaction): Promise<void> {
    if ((await read(transaction.objectStore(TABS), TERM)) === this.term) return;
    const error = isElsewhere();
    aborted(transaction);
    this.onGone(error);
    throw error;
  }

  private begun(durability: IDBTransactionDurability = "strict"): IDBTransaction {
    return tried(() => this.database.transaction(STORES, "readwrite", { durability }));
  }

  private reading(stores: readonly string[]): IDBTransaction {
    return tried(() => this.database.transaction(stores));
  }

  /** Forget the requests of tabs that are gone. */
  async forget(isGone: (tabs: string[]) => Promise<string[]>): Promise<void> {
    const keys = await answered(this.reading([TABS]).objectStore(TABS).getAllKeys());
    const tabs = new Set(keys.filter(Array.isArray).map(([tab]) => tab as string));
    const gone = await isGone([...tabs]);
    if (!gone.length) return;
    const transaction = this.begun();
    for (const tab of gone) transaction.objectStore(TABS).delete(requestsOf(tab));
    await ended(transaction);
  }

  async row(key: string): Promise<Row | undefined> {
    const store = this.reading(["rows"]).objectStore("rows");
    return (await answered(store.get(key))) as StoredRow | undefined;
  }

  async rows(table: string): Promise<[string, Row][]> {
    const store = this.reading(["rows"]).objectStore("rows");
    const [keys, rows] = await Promise.all([
      answered(store.getAllKeys(ofTable(table))),
      answered(store.getAll(ofTable(table))),
    ]);
    return keys.map((key, at) => [idOf(key as string), rows[at] as StoredRow]);
  }

  async find({ prefix, isDown, limit }: Range): Promise<[string, Row][]> {
    const index = this.reading(["rows"]).objectStore("rows").index("places");
    // A list is behind all texts.
    const range = IDBKeyRange.bound(prefix, [...prefix, []]);
    if (isDown) return backwards(index, range, limit);
    const count = limit === Infinity ? undefined : limit;
    const [keys, rows] = await Promise.all([
      answered(index.getAllKeys(range, count)),
      answered(index.getAll(range, count)),
    ]);
    return keys.map((key, at) => [key as string, rows[at] as StoredRow]);
  }

  async buildIndexes(table: string): Promise<void> {
    const ids = unbuilt(this.memory.tables.get(table));
    if (!ids.length) return;
    for (let from: string | null = `${table}\n`; from !== null;) {
      from = await this.inTurn((): Promise<string | null> => this.buildFrom(table, from!));
    }
    await this.transaction((work) => built(work, table, ids));
  }

  /** Put some rows into the indexes; the key of the last one, null if there are no others. */
  private async buildFrom(table: string, from: string): Promise<string | null> {
    // The index counts only once a later transaction, which is flushed, says that it is whole.
    const transaction = this.begun("relaxed");
    const end = ended(transaction);
    const store = transaction.objectStore("rows");
    const range = IDBKeyRange.bound(from, `${table}\n\uffff`, true);
    await this.checkTerm(transaction);
    const [keys, rows] = await Promise.all([
      answered(store.getAllKeys(range, BUILT_ROWS_MAX)),
      answered(store.getAll(range, BUILT_ROWS_MAX)),
    ]);
    const of = this.memory.tables.get(table) ?? {};
    for (const [at, row] of (rows as StoredRow[]).entries()) {
      const places = entriesOf(of, row);
      if (JSON.stringify(places) !== JSON.stringify(row.places ?? []))
        store.put({ ...row, places }, keys[at]);
    }
    await end;
    return keys.length < BUILT_ROWS_MAX ? null : (keys.at(-1) as string);
  }

  close(): void {
    this.database.close();
  }

  wipe(): Promise<void> {
    return this.inTurn(() => this.clear());
  }

  private async clear(): Promise<void> {
    // Not deleted: that would wait for the other tabs, which have it open.
    const transaction = this.begun();
    const end = ended(transaction);
    const tabs = transaction.objectStore(TABS);
    await this.checkTerm(transaction);
    for (const store of STORES) transaction.objectStore(store).clear();
    tabs.put(this.term, TERM);
    await end;
    Object.assign(this.memory, newMemory());
  }
}

async function loaded(transaction: IDBTransaction): Promise<Memory> {
  const read = async <T>(name: string): Promise<[string, T][]> => {
    const store = transaction.objectStore(name);
    const [keys, values] = await Promise.all([
      answered(store.getAllKeys()),
      answered(store.getAll()),
    ]);
    return keys.map((key, at) => [key as string, values[at] as T]);
  };
  const [[position], tables, outbox, journal, conflicts] = await Promise.all([
    read<Position>("position"),
    read<Table>("tables"),
    read<Entry>("outbox"),
    read<Hidden>("journal"),
    read<Conflict>("conflicts"),
  ]);
  const memory = newMemory();
  if (position) memory.position = position[1];
  memory.tables = new Map(tables);
  memory.outbox = new Map(outbox.map(([, entry]) => [entry.delta.hlc, entry]));
  memory.journal = new Map(journal);
  memory.conflicts = new Map(conflicts);
  memory.last = lastOf(memory.position, memory.outbox.values());
  return memory;
}

/** Read the rows that a transaction needs, within it: no other thing is awaited meanwhile. */
async function load(
  store: IDBObjectStore,
  needs: Needs,
  memory: Memory,
): Promise<Map<string, Row>> {
  const rows = new Map<string, Row>();
  const take = (source: IDBObjectStore | IDBIndex, range: IDBKeyRange | null): Promise<void> =>
    quiet((resolve, reject) => {
      const cursor = source.openCursor(range);
      cursor.onerror = () => reject(failed(cursor.error));
      cursor.onsuccess = () => {
        const at = cursor.result;
        if (!at) {
          resolve();
          return;
        }
        rows.set(at.primaryKey as string, at.value as StoredRow);
        at.continue();
      };
    });
  const wanted: Promise<unknown>[] = [];
  if (needs.all) {
    await take(store, null);
    return rows;
  }
  for (const mark of needs.marks ?? [])
    wanted.push(take(store.index("marks"), IDBKeyRange.only(mark)));
  for (const table of new Set(needs.tables ?? [])) wanted.push(take(store, ofTable(table)));
  for (const [key, { generation }] of needs.old ? memory.tables : []) {
    if (!generation) continue;
    wanted.push(take(store.index("age"), IDBKeyRange.bound([key, 0], [key, generation - 1])));
  }
  const byTable = new Map<string, Set<string>>();
  for (const key of needs.keys ?? []) {
    const table = tableOf(key);
    byTable.set(table, (byTable.get(table) ?? new Set()).add(key));
  }
  for (const keys of byTable.values()) wanted.push(loadKeys(store, keys, rows));
  await Promise.all(wanted);
  return rows;
}

/** Read rows of a table: many of them at once, as a first sync asks for rows that are not there. */
async function loadKeys(
  store: IDBObjectStore,
  keys: ReadonlySet<string>,
  rows: Map<string, Row>,
): Promise<void> {
  let wanted = [...keys];
  if (wanted.length >= AT_ONCE_MIN) {
    wanted.sort();
    const range = IDBKeyRange.bound(wanted[0], wanted.at(-1));
    const count = await answered(store.count(range));
    if (!count) return;
    if (count <= READ_TOO_MAX * wanted.length) {
      const [found, values] = await Promise.all([
        answered(store.getAllKeys(range)),
        answered(store.getAll(range)),
      ]);
      for (const [at, key] of (found as string[]).entries())
        if (keys.has(key)) rows.set(key, values[at] as StoredRow);
      return;
    }
    if (count <= KEYS_READ_TOO_MAX * wanted.length) {
      const there = new Set(await answered(store.getAllKeys(range)));
      wanted = wanted.filter((key) => there.has(key));
    }
  }
  const found = await Promise.all(wanted.map((key) => answered<unknown>(store.get(key))));
  for (const [at, key] of wanted.entries())
    if (found[at] !== undefined) rows.set(key, found[at] as StoredRow);
}

/** The last rows of a range, that at its end first. */
function backwards(index: IDBIndex, range: IDBKeyRange, limit: number): Promise<[string, Row][]> {
  return new Promise((resolve, reject) => {
    const rows: [string, Row][] = [];
    const cursor = index.openCursor(range, "prev");
    cursor.onerror = () => reject(failed(cursor.error));
    cursor.onsuccess = () => {
      const at = cursor.result;
      if (at) rows.push([at.primaryKey as string, at.value as StoredRow]);
      if (at && rows.length < limit) at.continue();
      else resolve(rows);
    };
  });
}

async function put(transaction: IDBTransaction, work: Work): Promise<void> {
  const writes = work.written;
  const store = <T>(name: string, values: ReadonlyMap<string, T | null>): void => {
    const to = transaction.objectStore(name);
    for (const [key, value] of values) {
      if (value === null) to.delete(key);
      else to.put(value, key);
    }
  };
  if (writes.position) transaction.objectStore("position").put(writes.position, POSITION);
  store("tables", writes.tables);
  store("outbox", new Map([...writes.outbox].map(([hlc, entry]) => [hex(hlc), entry])));
  store("journal", writes.journal);
  store("conflicts", writes.conflicts);
  const rows = transaction.objectStore("rows");
  let number = 0;
  for (const [key, row] of writes.rows) {
    const request: IDBRequest = row ? rows.put(stored(key, row, work), key) : rows.delete(key);
    number += 1;
    if (number % PUT_AT_ONCE_MAX === 0) await answered(request);
  }
}

function stored(key: string, row: Row, work: Work): StoredRow {
  const table = tableOf(key);
  const places = entriesOf(work.table(table) ?? {}, row);
  return { ...row, table, marks: marksOf(row), places };
}

/** A promise that need not be looked at: of several errors of a transaction one is told. */
function quiet<T>(
  executor: (resolve: (value: T) => void, reject: (error: Error) => void) => void,
): Promise<T> {
  const promise = new Promise<T>(executor);
  promise.catch(() => undefined);
  return promise;
}

export const answered = <T>(request: IDBRequest<T>): Promise<T> =>
  quiet((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(failed(request.error));
  });

const read = (store: IDBObjectStore, key: IDBValidKey): Promise<unknown> =>
  answered<unknown>(store.get(key));

export const ended = (transaction: IDBTransaction): Promise<void> =>
  quiet((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(failed(transaction.error));
  });

function tried<T>(action: () => T): T {
  try {
    return action();
  } catch (error) {
    throw failed(error);
  }
}

/** End a transaction without its writes, unless it has ended already. */
function aborted(transaction: IDBTransaction): void {
  try {
    transaction.abort();
  } catch {
    // It failed by itself, and its error is told.
  }
}

const ELSEWHERE = "OPEN_IN_ANOTHER_TAB";

/** Another tab writes. */
export const isElsewhere = (): LakeSyncError =>
  fault(ELSEWHERE, "another tab of this browser has the client open: use it there");
export const isLost = (error: unknown): error is LakeSyncError =>
  error instanceof LakeSyncError && error.code === ELSEWHERE;

const isNewer = (): LakeSyncError =>
  fault("UPGRADE_REQUIRED", "a newer release of the app has opened its database: reload the page");

/** What a browser's error means to an app. */
export function failed(error: unknown): LakeSyncError {
  const name = error instanceof DOMException ? error.name : "";
  if (name === "VersionError") return isNewer();
  if (name === "QuotaExceededError") {
    return fault("STORAGE_FULL", "the browser has no room left for this site; nothing was written");
  }
  const message = error instanceof Error ? error.message : String(error);
  return fault(
    "STORAGE_FAILED",
    `the browser's storage failed, and nothing was written: ${message}`,
  );
}
