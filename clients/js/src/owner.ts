/**
 * What the one tab does that owns a client: it alone stamps edits, pushes and pulls.
 *
 * It is asked by commands, whose names and arguments can be sent from another tab.
 */

import type { Browser } from "./browser.js";
import { declare, type DeclaredColumns } from "./declared.js";
import { amend, discard, rebind, resolve, retry, write, type Edit, type Keep } from "./edits.js";
import { fault, LakeSyncError } from "./errors.js";
import { Http, type Address } from "./http.js";
import { deltaId } from "./merge.js";
import { keyOf } from "./rows.js";
import { fold, notFound, rowKey, type Entry, type Needs, type Work } from "./state.js";
import { isLost, type Done, type Repeat, type Small, type Storage } from "./storage.js";
import { Syncer, type Mode, type Syncing } from "./sync.js";
import { failureOf, type Command, type Failure } from "./tabs.js";
import type { Changes } from "./watch.js";

export interface OwnerOptions extends Address {
  readonly pageDeltas?: number;
  readonly firstTables?: readonly string[];
  readonly now?: () => number;
}

/** What was done, so that other tabs have it in memory, and read again what has changed. */
export interface News extends Changes {
  /** Null if everything was removed. */
  readonly writes: Small | null;
}

/** How syncing is. */
export interface Live {
  readonly isConnected: boolean;
  readonly isUploading: boolean;
  readonly isDownloading: boolean;
  readonly received: number;
  readonly progress: { readonly read: number; readonly total: number } | null;
  readonly failure: Failure | null;
  readonly lost: number;
}

export const IDLE: Live = {
  isConnected: false,
  isUploading: false,
  isDownloading: false,
  received: 0,
  progress: null,
  failure: null,
  lost: 0,
};

const EVERY_MS = 10_000;
const EDITED_MS = 200;
const BACKOFF_MS_MIN = 1_000;
const BACKOFF_MS_MAX = 300_000;
const FOREIGN_MS_MAX = 15_000;

// --- what is written ------------------------------------------------------------------------------

interface Write {
  readonly body: (work: Work) => unknown;
  readonly needs: (work: Work) => Needs;
}

/** The commands that write once, however often they are repeated. */
const WRITES = {
  write: (edits: readonly Edit[]): Write => ({
    body: (work) => write(work, edits),
    needs: keysOf(edits),
  }),
  retry: (id: string) => decided(id, retry),
  discard: (id: string) => decided(id, discard),
  amend: (id: string, columns: Readonly<Record<string, unknown>>) =>
    decided(id, (work, hlc) => void amend(work, hlc, columns)),
  resolve: (id: string, keep: Keep, value: unknown): Write => ({
    body: (work) => resolve(work, id, keep, value),
    needs: (work) => ({
      keys: work.conflicts
        .filter(([key]) => key === id)
        .map(([, { table, rowId }]) => rowKey(table, rowId)),
    }),
  }),
  declare: (
    table: string,
    columns: DeclaredColumns,
    indexes: readonly (readonly string[])[],
  ): Write => ({
    body: (work) => declare(work, table, columns, indexes),
    needs: keysOf([{ op: "INSERT", table, rowId: "", columns }]),
  }),
  rebind: (keep: "edits" | "nothing"): Write => ({
    body: (work) => rebind(work, keep),
    needs: () => ({ all: true }),
  }),
};

/** What an app decides about the edit with an id. */
function decided(id: string, body: (work: Work, hlc: bigint) => void): Write {
  const find = (work: Work): Entry | undefined =>
    work.entries().find((entry) => deltaId(entry.delta) === id);
  return {
    body: (work) => {
      const entry = find(work);
      if (!entry) throw notFound("edit");
      body(work, entry.delta.hlc);
    },
    needs: (work) => ({ keys: [find(work)].flatMap((entry) => (entry ? keyOf(entry.delta) : [])) }),
  };
}

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

// --- the owner ------------------------------------------------------------------------------------

export class Owner {
  live: Live = IDLE;
  private readonly http: Http;
  private readonly syncer: Syncer;
  private stopping = new AbortController();
  /** The tabs that want to be synced in the background. */
  private readonly connected = new Set<string>();
  private readonly commands: Readonly<Record<string, (...given: never[]) => Promise<unknown>>> = {
    sync: (mode: Mode) => this.sync(mode),
    connect: (tab: string) => this.connect(tab),
    disconnect: (tab: string) => this.disconnect(tab),
    wipe: (losesEdits: boolean) => this.wipe(losesEdits),
    forgetLost: () => this.forgetLost(),
    buildIndexes: async (table: string) => this.storage.buildIndexes?.(table),
  };
  private syncing: Promise<unknown> = Promise.resolve();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  private marked = -1;

  /**
   * @param isNew - nobody has stored anything before
   * @param tell - is told what was done, or nothing if only `live` is another
   */
  constructor(
    private readonly options: OwnerOptions,
    private readonly storage: Storage,
    private readonly name: string,
    private readonly browser: Browser,
    isNew: boolean,
    private readonly tell: (news?: News) => void,
  ) {
    this.http = new Http(options);
    const { clientId, pageDeltas = 1_000, firstTables = [] } = options;
    this.syncer = new Syncer(clientId, pageDeltas, firstTables);
    this.beginMark(isNew);
    browser.self?.addEventListener("online", this.wake);
  }

  stop(): void {
    this.stopping.abort();
    clearTimeout(this.timer);
    this.browser.self?.removeEventListener("online", this.wake);
  }

  /** Do what a tab asks; throws why it cannot. */
  async carryOut([name, ...given]: Command, repeat?: Repeat): Promise<unknown> {
    const all = WRITES as unknown as Record<string, ((...given: unknown[]) => Write) | undefined>;
    const made = Object.hasOwn(all, name) ? all[name]?.(...given) : undefined;
    if (!made) return this.commands[name]?.(...(given as never[]));
    const done = await this.storage.transaction(made.body, made.needs, repeat);
    this.did(done);
    if (this.live.isConnected && !this.failures) this.plan(EDITED_MS);
    return done.result;
  }

  private did({ changed, rows, writes }: Done<unknown>): void {
    this.mark();
    this.tell({ tables: changed, rows, writes });
  }

  private note(part: Partial<Live>): void {
    const before = JSON.stringify(this.live);
    this.live = { ...this.live, ...part };
    if (JSON.stringify(this.live) !== before) this.tell();
  }

  // --- syncing ------------------------------------------------------------------------------------

  /** Push and pull until nothing waits; one sync at a time. */
  private async sync(mode: Mode): Promise<void> {
    const done = this.syncing.then(() => this.run(this.syncer.sync(mode)));
    this.syncing = done.catch(() => undefined);
    let failure: Failure | null = null;
    try {
      await done;
    } catch (error) {
      failure = failureOf(error);
      throw error;
    } finally {
      this.note({ failure, isUploading: false, isDownloading: false, progress: null });
    }
  }

  private async run<T>(syncing: Syncing<T>): Promise<T> {
    const { signal } = this.stopping;
    this.live = { ...this.live, received: 0 };
    let step = syncing.next();
    while (!step.done) {
      const effect = step.value;
      let answer: unknown;
      if (signal.aborted) throw fault("CLOSED", "the client was closed or wiped meanwhile");
      try {
        if ("request" in effect) {
          this.note({ isUploading: "push" in effect.request });
          answer = await this.http.send(effect.request, signal);
          if ("pull" in effect.request) this.notePage(answer);
        } else if ("transaction" in effect) {
          const done = await this.storage.transaction(effect.transaction, effect.needs);
          this.did(done);
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

  /** Note how far a pull is that brings something. */
  private notePage(body: unknown): void {
    const { deltas, hasMore, rowsRead, rowsTotal } = body as Readonly<Record<string, unknown>>;
    const count = Array.isArray(deltas) ? deltas.length : 0;
    if (!count && !hasMore) return;
    this.note({
      isDownloading: true,
      received: this.live.received + count,
      progress: rowsTotal ? { read: Number(rowsRead), total: Number(rowsTotal) } : null,
    });
  }

  /** Sync in the background for a tab: now, after edits, and every ten seconds. */
  private connect(tab: string): Promise<void> {
    this.connected.add(tab);
    this.note({ isConnected: true });
    this.wake();
    return Promise.resolve();
  }

  private disconnect(tab: string): Promise<void> {
    this.connected.delete(tab);
    if (!this.connected.size) clearTimeout(this.timer);
    this.note({ isConnected: this.connected.size > 0 });
    return Promise.resolve();
  }

  /** Forget tabs that are gone. */
  async forget(isGone: (tabs: string[]) => Promise<string[]>): Promise<void> {
    for (const tab of await isGone([...this.connected])) await this.disconnect(tab);
  }

  private readonly wake = (): void => {
    this.syncer.hurry();
    if (this.live.isConnected) this.plan(0);
  };

  private plan(waitMs: number): void {
    clearTimeout(this.timer);
    if (this.stopping.signal.aborted) return;
    this.timer = setTimeout(() => void this.background(), waitMs);
  }

  private async background(): Promise<void> {
    let waitMs = EVERY_MS * (0.9 + 0.2 * Math.random());
    try {
      await this.sync("full");
      this.failures = 0;
    } catch (error) {
      if (!(error instanceof LakeSyncError)) throw error;
      if (isLost(error)) return;
      this.failures += 1;
      waitMs = waitAfter(error, this.failures);
    }
    if (this.live.isConnected) this.plan(waitMs);
  }

  // --- the end ------------------------------------------------------------------------------------

  private async wipe(losesEdits: boolean): Promise<void> {
    const waiting = this.storage.memory.outbox.size;
    if (waiting && !losesEdits) {
      throw fault("CONFLICT", `${waiting} edits have not reached the gateway; sync first`);
    }
    this.connected.clear();
    clearTimeout(this.timer);
    this.stopping.abort(); // what it would bring is not wanted any more
    this.stopping = new AbortController();
    const tables = new Set(this.storage.memory.tables.keys());
    await this.storage.wipe();
    this.live = { ...IDLE, lost: this.live.lost };
    this.mark();
    this.tell({ tables, rows: new Map(), writes: null });
  }

  // --- what the browser may remove ----------------------------------------------------------------

  // A browser that is short of room removes databases. Beside it, the number of edits that wait is
  // noted: `waiting lost`.

  private beginMark(isNew: boolean): void {
    if (!this.storage.isDurable) return;
    const [waiting = 0, lost = 0] = (this.readMark() ?? "").split(" ").map(Number);
    this.live = { ...IDLE, lost: (isNew ? waiting : 0) + lost };
    this.mark();
  }

  /** Note how many edits wait, in case that the browser removes them. */
  private mark(): void {
    const waiting = this.storage.memory.outbox.size;
    if (this.marked === waiting || !this.storage.isDurable) return;
    this.marked = waiting;
    try {
      this.browser.localStorage?.setItem(this.name, `${waiting} ${this.live.lost}`);
    } catch {
      // It is full, or blocked: then what the browser removes is not told.
    }
  }

  private readMark(): string | null {
    try {
      return this.browser.localStorage?.getItem(this.name) ?? null;
    } catch {
      return null;
    }
  }

  private forgetLost(): Promise<void> {
    this.note({ lost: 0 });
    this.marked = -1;
    this.mark();
    return Promise.resolve();
  }
}

function waitAfter(error: LakeSyncError, failures: number): number {
  const most = error.isForeign ? FOREIGN_MS_MAX : BACKOFF_MS_MAX;
  const least = Math.min(error.retryAfterS * 1_000, most);
  const ceiling = Math.min(most, BACKOFF_MS_MIN * 2 ** Math.min(failures, 16));
  return error.retry === "never"
    ? most / 2
    : Math.max(least, Math.min(most, least + Math.random() * ceiling));
}
