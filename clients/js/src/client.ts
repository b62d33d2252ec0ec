/** The client: rows on the device, edited at once, and synced when there is a network. */

import { thisBrowser, type Browser } from "./browser.js";
import { typesOf, type DeclaredColumns } from "./declared.js";
import type { Edit, Keep } from "./edits.js";
import { fault, LakeSyncError } from "./errors.js";
import type { Address } from "./http.js";
import { deltaId, type Delta } from "./merge.js";
import { IDLE, ownerOf, type Live, type News, type Owner, type OwnerOptions } from "./owner.js";
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
import { fold, newMemory, rowKey, type Conflict, type Entry, type Memory } from "./state.js";
import { IndexedStorage, isLost, MemoryStorage, type Storage } from "./storage.js";
import type { Mode } from "./sync.js";
import { isClosed, tabsOf, type Command, type Tabs } from "./tabs.js";
import { cells, decoded, type Cell, type Types } from "./values.js";
import { Watched, type Changes } from "./watch.js";

export type { QueriedRow, Query, RowValues };

/** What an operation gives: a value, or why there is none. Nothing is thrown. */
export type Result<T> =
  { readonly ok: true; readonly value: T } | { readonly ok: false; readonly error: LakeSyncError };

export interface Options extends OwnerOptions {
  /** The name of the database in the browser; tabs with the same name have one client. */
  readonly name?: string;
  /** Keep nothing when the page is closed. */
  readonly inMemory?: boolean;
  /** Whether the browser is asked to keep the data when it is short of room; true unless set. */
  readonly persist?: boolean;
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
  /**
   * When one last did, in milliseconds since 1970 by the gateway's clock, to the minute; 0 if none
   * has.
   */
  readonly syncedMs: number;
  /** Whether it syncs in the background, in this tab or in another. */
  readonly isConnected: boolean;
  /** Whether a socket to the gateway is open, which tells of changes at once. */
  readonly isLive: boolean;
  /** Why none is; null while one is open, and if none was tried. */
  readonly socketError: string | null;
  /** Whether a push is in progress. */
  readonly isUploading: boolean;
  /** Whether a first sync, or a pull that brings something, is in progress. */
  readonly isDownloading: boolean;
  /** Deltas that the latest sync has brought so far. */
  readonly received: number;
  /** Rows of a first sync that were read, out of how many; null if that is not known. */
  readonly progress: { readonly read: number; readonly total: number } | null;
  readonly lastError: LakeSyncError | null;
  /** Whether the data outlives the page: false in private windows, and where storage is blocked. */
  readonly isDurable: boolean;
  /** Whether the browser has promised to keep it when it is short of room. */
  readonly isPersisted: boolean;
  /** Edits that waited when the browser removed the data; until `forgetLost`. */
  readonly lost: number;
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

/** How exact `Status.syncedMs` is: no app is to draw itself anew with each poll. */
const SYNCED_MS = 60_000;
/** How many rows of a commit other tabs are sent, at most. */
const SENT_ROWS_MAX = 100;

export class Client {
  private readonly listeners = new Set<(tables: ReadonlySet<string>) => void>();
  private readonly statusListeners = new Set<() => void>();
  private readonly watches = new Set<Watched>();
  private readonly besides = new Set<Besides>();
  private tabs: Tabs<News> | null = null;
  /** Where this tab owns the client. */
  private owner: Owner | null = null;
  /** How the owner is. */
  private live = IDLE;
  private wantsSync = false;
  private isPersisted = false;
  private syncedMs = 0;
  private shown: { readonly text: string; readonly status: Status } | null = null;

  private constructor(
    private readonly options: Options,
    private readonly browser: Browser,
    private readonly storage: Storage,
  ) {
    browser.document?.addEventListener("visibilitychange", this.onVisible);
  }

  /**
   * Open the client's database in this browser; where storage is blocked, everything is in memory.
   *
   * Any number of tabs may open it; see `tabs.ts`. Where a browser has no Web Locks, or no
   * `BroadcastChannel`, one may: another is answered `OPEN_IN_ANOTHER_TAB`.
   *
   * @param browser - for tests
   */
  static open(options: Options, browser = thisBrowser()): Promise<Result<Client>> {
    return attempt(async () => {
      const device = { clientId: options.clientId, now: options.now ?? Date.now };
      const name = nameOf(options);
      if (!options.inMemory && browser.indexedDB) {
        try {
          const storage = await IndexedStorage.connect(name, device, browser.indexedDB);
          return await new Client(options, browser, storage).join(storage, name);
        } catch (error) {
          if (!(error instanceof LakeSyncError && error.code === "STORAGE_FAILED")) throw error;
        }
      }
      const client = new Client(options, browser, new MemoryStorage(device));
      client.begin(name, false);
      return client;
    });
  }

  /** Be one of the tabs that have the client open. */
  private async join(storage: IndexedStorage, name: string): Promise<Client> {
    const tabs = tabsOf<News, Live>(name, this.browser, {
      own: async () => {
        const isNew = await storage.claim();
        this.begin(name, isNew);
        return storage.term;
      },
      disown: () => this.end(),
      carryOut: (command, repeat) => this.owner!.carryOut(command, repeat),
      live: () => this.live,
      reload: async () => {
        await storage.reload();
        this.changed({ tables: new Set(storage.memory.tables.keys()), rows: new Map() });
      },
      hear: (live, news) => this.hear(storage, live, news),
      forget: async (isGone) => {
        await storage.forget(isGone);
        await this.owner?.forget(isGone);
      },
    });
    this.tabs = tabs;
    storage.onGone = (error) => {
      if (isLost(error)) tabs.abdicate();
      else this.close(error);
    };
    void this.persist();
    try {
      await tabs.open();
    } catch (error) {
      this.close();
      throw error;
    }
    return this;
  }

  private async persist(): Promise<void> {
    const { storage } = this.browser;
    const isAsked = this.options.persist ?? true;
    try {
      this.isPersisted = (await (isAsked ? storage?.persist() : storage?.persisted())) ?? false;
    } catch {
      return; // blocked: it is not promised
    }
    this.tellStatus();
  }

  // --- tabs ---------------------------------------------------------------------------------------

  /** Have the tab do something that owns the client. */
  private ask<T>(...command: Command): Promise<T> {
    const asked = this.tabs?.ask(command) ?? this.owner?.carryOut(command);
    return (asked ?? Promise.reject(isClosed())) as Promise<T>;
  }

  private call<T>(...command: Command): Promise<Result<T>> {
    return attempt(() => this.ask<T>(...command));
  }

  private get me(): string {
    return this.tabs?.me ?? "";
  }

  /** Own the client. */
  private begin(name: string, isNew: boolean): void {
    const { options, storage, browser } = this;
    const owner = ownerOf(options, storage, name, browser, isNew, (news) => {
      if (this.owner !== owner) return;
      this.live = owner.live();
      this.tabs?.tell(news && sendable(news));
      if (news?.writes === null) this.wantsSync = false;
      this.changed(news);
    });
    this.owner = owner;
    this.live = owner.live();
    this.tellStatus();
    if (this.wantsSync) this.connect();
  }

  private end(): void {
    this.owner?.stop();
    this.owner = null;
  }

  /** Hear of the tab that owns the client. */
  private hear(storage: IndexedStorage, live: Live, news: News | undefined): void {
    this.live = live;
    if (news?.writes) storage.follow(news.writes);
    else if (news) {
      Object.assign(storage.memory, newMemory());
      this.wantsSync = false;
    }
    this.changed(news);
    if (this.wantsSync && !live.isConnected) this.connect();
  }

  private changed(changes?: Changes): void {
    if (changes?.tables.size) {
      for (const watched of this.watches) watched.hear(changes);
      for (const listener of this.listeners) listener(changes.tables);
    }
    this.tellStatus();
  }

  private readonly onVisible = (): void => {
    if (this.browser.document?.visibilityState !== "visible") return;
    // Whoever looks at the app wants news; a tab that has slept may have missed some.
    void this.call(this.wantsSync ? "connect" : "hello", this.me);
  };

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
      await this.ask("declare", table, columns, options.indexes ?? []);
      await this.ask("buildIndexes", fold(table));
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
      return this.ask("write", edits);
    });
  }

  private edit(edit: Edit): Promise<Result<Delta>> {
    return attempt(async () => (await this.ask<readonly Delta[]>("write", [edit]))[0]!);
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
    return this.call("retry", id);
  }

  /** Take an edit back: its row becomes what the others make of it. */
  discard(id: string): Promise<Result<void>> {
    return this.call("discard", id);
  }

  /** Replace a refused edit by one made now, with other values for some of its columns. */
  amend(id: string, columns: Columns): Promise<Result<void>> {
    return this.call("amend", id, columns);
  }

  /** Writes that were lost to others', or that others lost: until the app has resolved them. */
  conflicts(): readonly ShownConflict[] {
    const { conflicts, tables } = this.storage.memory;
    return [...conflicts].map(([id, conflict]) => {
      const type = this.typesOf(conflict.table)[conflict.column];
      const value = (text: string | null): Cell => (text === null ? null : decoded(type, text));
      const { own, other, base } = conflict;
      const table = tables.get(conflict.table)?.name ?? conflict.table;
      return { ...conflict, id, table, own: value(own), other: value(other), base: value(base) };
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
    return this.call("resolve", id, keep, value);
  }

  private typesOf(table: string): Types {
    const { tables, position } = this.storage.memory;
    return typesOf(tables.get(fold(table)), position.schemas, table);
  }

  /** Give everything to the next gateway that answers; returns how many edits were kept. */
  rebind(keep: "edits" | "nothing"): Promise<Result<number>> {
    return this.call("rebind", keep);
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

  private tellStatus(): void {
    for (const listener of this.statusListeners) listener();
  }

  /** The status; the same object for as long as it is the same. */
  get status(): Status {
    const { outbox, conflicts, position } = this.storage.memory;
    const quarantined = this.quarantined().length;
    const { failure, ...live } = this.live;
    if (Math.abs(position.syncedMs - this.syncedMs) > SYNCED_MS) this.syncedMs = position.syncedMs;
    const status = {
      ...live,
      waiting: outbox.size - quarantined,
      quarantined,
      conflicts: conflicts.size,
      hasSynced: position.syncedMs > 0,
      syncedMs: this.syncedMs,
      isDurable: this.storage.isDurable,
      isPersisted: this.isPersisted,
    };
    const text = JSON.stringify([status, failure]);
    if (this.shown?.text !== text) {
      const lastError = failure && new LakeSyncError(...failure);
      this.shown = { text, status: { ...status, lastError } };
    }
    return this.shown.status;
  }

  /** The app has told its user that edits were lost. */
  forgetLost(): Promise<Result<void>> {
    return this.call("forgetLost");
  }

  // --- syncing ------------------------------------------------------------------------------------

  /** Push and pull until nothing waits; one sync at a time. */
  sync(mode: Mode = "full"): Promise<Result<void>> {
    return this.call("sync", mode);
  }

  /** Sync in the background: now, after edits, and every ten seconds. */
  connect(): void {
    this.wantsSync = true;
    void this.call("connect", this.me);
  }

  /** End that, unless another tab wants it. */
  disconnect(): void {
    if (!this.wantsSync) return;
    this.wantsSync = false;
    void this.call("disconnect", this.me);
  }

  /** What the other entries of this package build on; not for apps. */
  get inside(): Inside {
    const { options, storage } = this;
    return {
      name: nameOf(options),
      address: options,
      clientId: options.clientId,
      now: options.now ?? Date.now,
      memory: storage.memory,
      isDurable: storage.isDurable,
      isConnected: this.wantsSync || this.live.isConnected,
      join: (besides) => {
        this.besides.add(besides);
        return () => this.besides.delete(besides);
      },
    };
  }

  // --- the end ------------------------------------------------------------------------------------

  /** End; another tab that has the client open goes on. */
  close(error?: LakeSyncError): void {
    this.disconnect();
    this.browser.document?.removeEventListener("visibilitychange", this.onVisible);
    this.end();
    this.storage.close();
    this.tabs?.close(error);
  }

  /** Remove everything from this browser; refused while edits wait, unless they may be lost. */
  wipe(options: { readonly loseEdits?: boolean } = {}): Promise<Result<void>> {
    return attempt(async () => {
      for (const besides of options.loseEdits ? [] : this.besides) {
        const what = await besides.waiting();
        if (what) throw fault("CONFLICT", `${what}; sync first`);
      }
      await this.ask("wipe", options.loseEdits ?? false);
      for (const besides of this.besides) await besides.wipe();
      if (this.storage.isDurable) removeBesides(this.browser, nameOf(this.options));
    });
  }
}

const nameOf = ({ name, gateway, clientId }: Options): string =>
  name ?? `lakesync ${gateway} ${clientId}`;

/** Remove what is stored beside a client by tabs that are gone. */
function removeBesides({ indexedDB }: Browser, name: string): void {
  for (const what of ["actions", "attachments"]) indexedDB?.deleteDatabase(`${name} ${what}`);
}

export async function attempt<T>(body: () => Promise<T>): Promise<Result<T>> {
  try {
    return { ok: true, value: await body() };
  } catch (error) {
    if (error instanceof LakeSyncError) return { ok: false, error };
    throw error;
  }
}

/** What other tabs are sent: many rows they read themselves, if they show them. */
const sendable = (news: News): News =>
  news.rows.size > SENT_ROWS_MAX ? { ...news, rows: new Map() } : news;

const shownEntry = (entry: Entry, types: Types): OutboxEntry => ({
  deltaId: deltaId(entry.delta),
  op: entry.delta.op,
  table: entry.delta.table,
  rowId: entry.delta.rowId,
  columns: cells(types, new Map(entry.delta.columns)),
  code: entry.code,
  reason: entry.message,
});
