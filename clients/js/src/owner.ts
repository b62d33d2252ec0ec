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
import { isRespelled, keyOf } from "./rows.js";
import { fold, notFound, rowKey, type Entry, type Needs, type Work } from "./state.js";
import { type Done, type Repeat, type Small, type Storage } from "./storage.js";
import type { Page } from "./messages.js";
import { loopOf, type LoopOptions } from "./loop.js";
import { readsAgain, Syncer, type Effect, type Mode, type Syncing } from "./sync.js";
import { failureOf, type Command, type Failure } from "./tabs.js";
import type { Changes } from "./watch.js";

export interface OwnerOptions extends Address, LoopOptions {
  readonly clientId: string;
  /** Deltas of one page, 1 to 10,000. */
  readonly pageDeltas?: number;
  /** Tables that a first sync reads first. */
  readonly firstTables?: readonly string[];
  /** The device's clock, in milliseconds since 1970; it may be wrong. */
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
  readonly isLive: boolean;
  readonly socketError: string | null;
  readonly isUploading: boolean;
  readonly isDownloading: boolean;
  readonly received: number;
  readonly progress: { readonly read: number; readonly total: number } | null;
  readonly failure: Failure | null;
  readonly lost: number;
}

export const IDLE: Live = {
  isConnected: false,
  isLive: false,
  socketError: null,
  isUploading: false,
  isDownloading: false,
  received: 0,
  progress: null,
  failure: null,
  lost: 0,
};

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

// --- the owner ------------------------------------------------------------------------------------

export interface Owner {
  live(): Live;
  /** Do what a tab asks; throws why it cannot. */
  carryOut(command: Command, repeat?: Repeat): Promise<unknown>;
  /** Forget tabs that are gone. */
  forget(isGone: (tabs: string[]) => Promise<string[]>): Promise<void>;
  stop(): void;
  /** Apply a broadcast, whatever else is under way; whether nothing is left to pull. */
  apply(page: Page): Promise<boolean>;
  /** Let the next sync try at once what was stopped on its way. */
  hurry(): void;
}

/**
 * Begin to own a client.
 *
 * @param isNew - nobody has stored anything before
 * @param tell - is told what was done, or nothing if only `live` is another
 */
export function ownerOf(
  options: OwnerOptions,
  storage: Storage,
  name: string,
  browser: Browser,
  isNew: boolean,
  tell: (news?: News) => void,
): Owner {
  const http = new Http(options);
  const { clientId, pageDeltas = 1_000, firstTables = [], now = Date.now } = options;
  const syncer = new Syncer(clientId, pageDeltas, firstTables);
  const marks = marksOf(storage, name, browser, isNew);
  let live: Live = { ...IDLE, lost: marks.lost };
  let stopping = new AbortController();
  let syncing: Promise<unknown> = Promise.resolve();

  const did = ({ changed, rows, writes }: Done<unknown>): void => {
    marks.note(live.lost);
    tell({ tables: changed, rows, writes });
  };

  const note = (part: Partial<Live>): void => {
    const before = JSON.stringify(live);
    live = { ...live, ...part };
    if (JSON.stringify(live) !== before) tell();
  };

  // --- syncing ------------------------------------------------------------------------------------

  /** Let one thing at a time go on with the gateway. */
  const inTurn = <T>(syncs: () => Syncing<T>): Promise<T> => {
    const done = syncing.then(() => run(syncs()));
    syncing = done.catch(() => undefined);
    return done;
  };

  const run = async <T>(steps: Syncing<T>): Promise<T> => {
    const { signal } = stopping;
    live = { ...live, received: 0 };
    let step = steps.next();
    while (!step.done) {
      if (signal.aborted) throw fault("CLOSED", "the client was closed or wiped meanwhile");
      try {
        step = steps.next(await carriedOut(step.value, signal));
      } catch (error) {
        step = steps.throw(error);
      }
    }
    return step.value;
  };

  const carriedOut = async (effect: Effect, signal: AbortSignal): Promise<unknown> => {
    if ("request" in effect) {
      note({ isUploading: "push" in effect.request });
      const answer = await http.send(effect.request, signal);
      if ("pull" in effect.request) notePage(answer);
      return answer;
    }
    if (!("transaction" in effect)) return now();
    const done = await storage.transaction(effect.transaction, effect.needs);
    did(done);
    return done.result;
  };

  /** Note how far a pull is that brings something. */
  const notePage = (body: unknown): void => {
    const { deltas, hasMore, rowsRead, rowsTotal } = body as Readonly<Record<string, unknown>>;
    const count = Array.isArray(deltas) ? deltas.length : 0;
    if (!count && !hasMore) return;
    note({
      isDownloading: true,
      received: live.received + count,
      progress: rowsTotal ? { read: Number(rowsRead), total: Number(rowsTotal) } : null,
    });
  };

  /** Push and pull until nothing waits. */
  const sync = async (mode: Mode, begins?: () => void): Promise<void> => {
    let failure: Failure | null = null;
    try {
      await inTurn(() => {
        begins?.();
        return syncer.sync(mode);
      });
    } catch (error) {
      failure = failureOf(error);
      throw error;
    } finally {
      note({ failure, isUploading: false, isDownloading: false, progress: null });
    }
  };

  /** Apply a broadcast. */
  const hear = async (page: Page): Promise<"done" | "wake" | "later"> => {
    try {
      if (await inTurn(() => syncer.hear(page))) return "done";
    } catch (error) {
      if (!(error instanceof LakeSyncError)) throw error; // the next sync tells it, if it stays
    }
    return readsAgain(storage.memory.position, page) ? "later" : "wake";
  };

  const loop = loopOf(options, {
    token: (isRefused) => http.bearer(isRefused),
    hear,
    sync: (begins) => sync("full", begins),
    hurry: () => syncer.hurry(),
    note,
  });
  browser.self?.addEventListener("online", loop.wake);

  // --- commands -----------------------------------------------------------------------------------

  const wipe = async (losesEdits: boolean): Promise<void> => {
    const waiting = storage.memory.outbox.size;
    if (waiting && !losesEdits) {
      throw fault("CONFLICT", `${waiting} edits have not reached the gateway; sync first`);
    }
    loop.stop();
    stopping.abort(); // what it would bring is not wanted any more
    stopping = new AbortController();
    const tables = new Set(storage.memory.tables.keys());
    await storage.wipe();
    live = { ...IDLE, lost: live.lost };
    marks.note(live.lost);
    tell({ tables, rows: new Map(), writes: null });
  };

  const forgetLost = (): void => {
    note({ lost: 0 });
    marks.note(0);
  };

  const commands: Readonly<Record<string, (...given: never[]) => unknown>> = {
    sync,
    wipe,
    forgetLost,
    connect: loop.connect,
    disconnect: loop.disconnect,
    buildIndexes: (table: string) => storage.buildIndexes?.(table),
  };

  return {
    live: () => live,
    carryOut: async ([command, ...given], repeat) => {
      const all = WRITES as unknown as Record<string, ((...given: unknown[]) => Write) | undefined>;
      const made = all[command]?.(...given);
      if (!made) return commands[command]?.(...(given as never[]));
      const done = await storage.transaction(made.body, made.needs, repeat);
      did(done);
      loop.edited();
      return done.result;
    },
    apply: (page) => run(syncer.hear(page)),
    hurry: () => syncer.hurry(),
    forget: async (isGone) => (await isGone(loop.tabs())).forEach(loop.disconnect),
    stop: () => {
      stopping.abort();
      loop.stop();
      browser.self?.removeEventListener("online", loop.wake);
    },
  };
}

// --- what the browser may remove ------------------------------------------------------------------

interface Marks {
  /** How many edits were lost, which the app has not been told yet. */
  readonly lost: number;
  /** Note how many edits wait, and are lost. */
  note(lost: number): void;
}

/**
 * A note beside the database of how many edits wait: a browser that is short of room removes databases.
 *
 * It is `waiting lost`.
 */
function marksOf(storage: Storage, name: string, browser: Browser, isNew: boolean): Marks {
  const { localStorage } = storage.isDurable ? browser : {};
  const attempt = <T>(action: () => T): T | null => {
    try {
      return action();
    } catch {
      return null; // it is full, or blocked: then what the browser removes is not told
    }
  };
  let marked = attempt(() => localStorage?.getItem(name)) ?? "";
  const [waiting = 0, before = 0] = marked.split(" ").map(Number);
  const note = (lost: number): void => {
    const mark = `${storage.memory.outbox.size} ${lost}`;
    if (mark === marked) return;
    marked = mark;
    attempt(() => localStorage?.setItem(name, mark));
  };
  const lost = (isNew ? waiting : 0) + before;
  note(lost);
  return { lost, note };
}
