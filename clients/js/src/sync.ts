/**
 * Syncing: push and pull until nothing waits and nothing is new.
 *
 * A generator: it asks for what it needs (a request, a transaction, the time), and goes on with the
 * answer. So it does no I/O, and a test, or a crash, may end it at any place. Laws K7, K8, K12, K38:
 * docs/spec/client.md.
 */

import { fault, LakeSyncError } from "./errors.js";
import {
  pullJson,
  pushJson,
  readPage,
  readReceipt,
  readSchemas,
  type Page,
  type Receipt,
  type Request,
} from "./messages.js";
import { applyPage, needsOfPage, releaseUndeclared, startAgain } from "./pages.js";
import {
  applyReceipt,
  isStopped,
  markPending,
  markSent,
  needsOfReceipt,
  noResult,
  quarantine,
  type Batch,
  type BatchResult,
} from "./receipts.js";
import { sizeOf, type Entry, type Needs, type Position, type Work } from "./state.js";
import { max, type Stamp } from "./stamp.js";

export type Mode = "full" | "push" | "pull";

/** What a sync asks its surroundings for. */
export type Effect =
  | { readonly request: Request }
  | { readonly transaction: (work: Work) => unknown; readonly needs: (work: Work) => Needs }
  | { readonly time: true };

export type Syncing<T> = Generator<Effect, T>;

const ROUNDS_MAX = 10;
const RESTAMPS_MAX = 3;
const BATCH_DELTAS_MAX = 500;
const BATCH_BYTES_MAX = 1_000_000;
const ATOMIC_DELTAS_MAX = 80;
const ATOMIC_BYTES_MAX = 250_000;
const TRANSACTION_DELTAS_MAX = 10_000;
const TRANSACTION_BYTES_MAX = 4_000_000;
const STOPPED_MS_MIN = 15_000;
const STOPPED_MS_MAX = 300_000;
const EVERYTHING = "*";
/** Refusals of a push after which a pull may help. */
const PULL_HELPS: ReadonlySet<string> = new Set(["OUT_OF_ORDER", "CURSOR_EXPIRED", "ROW_DELETED"]);
/** Refusals of a push that end with the next pull. */
const AWAITS_PULL: ReadonlySet<string> = new Set(["OUT_OF_ORDER", "CURSOR_EXPIRED"]);

function* transaction<T>(
  body: (work: Work) => T,
  needs: (work: Work) => Needs = () => ({}),
): Syncing<T> {
  return (yield { transaction: body, needs }) as T;
}

function* time(): Syncing<number> {
  return (yield { time: true }) as number;
}

export class Syncer {
  /** The gateway's latest commit by receipts; a pull reaches it. */
  private lastCommit: Stamp = 0n;
  private stoppedWaitMs = 0;
  private stoppedSinceMs = 0;

  constructor(
    private readonly clientId: string,
    private readonly pageDeltas: number,
    private readonly firstTables: readonly string[] = [],
  ) {}

  /** Push and pull; throws the error of the part that failed. */
  *sync(mode: Mode = "full"): Syncing<void> {
    for (let round = 0; round < ROUNDS_MAX; round += 1) {
      const pushError = mode === "pull" ? null : yield* attempt(this.push());
      const pullError = mode === "push" ? null : yield* attempt(this.pull());
      const helps = mode === "full" && pushError !== null && PULL_HELPS.has(pushError.code);
      const isOver =
        pullError !== null ||
        (pushError !== null && !helps) ||
        (pushError === null && (mode === "pull" || (yield* transaction(isQuiet))));
      if (!isOver && round < ROUNDS_MAX - 1) continue;
      // Not that of a push that awaits the pull.
      const awaits = pushError !== null && AWAITS_PULL.has(pushError.code);
      const error = awaits ? (pullError ?? pushError) : (pushError ?? pullError);
      if (error) throw error;
      return;
    }
  }

  /** Let edits that were stopped on their way be tried at once. */
  hurry(): void {
    this.stoppedWaitMs = 0;
  }

  // --- pushing ------------------------------------------------------------------------------------

  private *push(): Syncing<void> {
    const now = yield* time();
    const since = now - this.stoppedSinceMs;
    const pace: Pace = {
      unitsMax: BATCH_DELTAS_MAX,
      restamps: 0,
      triesStopped: !(since >= 0 && since < this.stoppedWaitMs),
      tried: new Set(),
      isOpen: false,
      stopped: 0,
    };
    for (;;) {
      const batch = yield* transaction((work) => leave(work, pace));
      if (!batch) break;
      const result = yield* this.exchange(batch);
      if (result.refused) yield* this.cut(batch, result.refused, pace);
      else goOn(pace, result);
    }
    if (pace.triesStopped) {
      const doubled = Math.min(Math.max(STOPPED_MS_MIN, 2 * this.stoppedWaitMs), STOPPED_MS_MAX);
      this.stoppedWaitMs = pace.stopped ? doubled : 0;
      this.stoppedSinceMs = yield* time();
    }
  }

  private *request(entries: readonly Entry[], atomic: boolean, epoch: string): Syncing<Receipt> {
    const deltas = entries.map((entry) => entry.delta);
    const push = pushJson({ clientId: this.clientId, deltas, atomic, epoch });
    return readReceipt(yield { request: { push } });
  }

  private *exchange(batch: Batch): Syncing<BatchResult> {
    const { entries, atomic, epoch } = batch;
    if (
      atomic &&
      (entries.length > TRANSACTION_DELTAS_MAX || size(entries) > TRANSACTION_BYTES_MAX)
    ) {
      return noResult(fault("ATOMIC_PUSH_TOO_LARGE", "the transaction is larger than any push"));
    }
    const sentMs = yield* time();
    let receipt: Receipt;
    try {
      receipt = yield* this.request(entries, atomic, epoch);
    } catch (error) {
      if (error instanceof LakeSyncError && (error.isForeign || error.refusesRequest)) {
        return noResult(error);
      }
      throw error;
    }
    this.lastCommit = max(this.lastCommit, receipt.serverHlc);
    return yield* transaction(
      (work) => {
        learnEpoch(work, epoch, receipt.epoch);
        work.correct(receipt.serverTimeMs, sentMs);
        if (batch.wasStopped) unmarkStopped(work, entries);
        return applyReceipt(work, batch, receipt);
      },
      (work) => needsOfReceipt(work, batch, receipt),
    );
  }

  /** Make the next batch smaller than one that was refused as a whole. */
  private *cut(batch: Batch, error: LakeSyncError, pace: Pace): Syncing<void> {
    if (error.isForeign) {
      yield* this.passBy(batch, error, pace);
      return;
    }
    const isDone = yield* transaction((work) => {
      markPending(work, batch.entries); // it was answered, so none of them is in doubt for it
      if (batch.units > 1) {
        pace.unitsMax = Math.floor(batch.units / 2);
        return true;
      }
      if (!error.isAboutSize || !batch.atomic) return false;
      for (const { delta } of batch.entries) {
        const entry = work.entry(delta.hlc);
        if (entry) work.putEntry({ ...entry, txn: null });
      }
      return true;
    });
    if (isDone) return;
    if (!error.isAboutSize) yield* this.request([], false, batch.epoch);
    yield* transaction((work) => quarantine(work, batch.entries, error));
    pace.unitsMax = BATCH_DELTAS_MAX;
  }

  /** Make the next batch smaller than one that something on the way has stopped. */
  private *passBy(batch: Batch, error: LakeSyncError, pace: Pace): Syncing<void> {
    if (!pace.isOpen || batch.units === 1) {
      yield* this.request([], false, batch.epoch);
      pace.isOpen = true;
    }
    if (batch.units > 1) {
      pace.unitsMax = Math.floor(batch.units / 2);
      return;
    }
    if (isReturning(batch.entries)) throw error;
    yield* transaction((work) => {
      for (const { delta } of batch.entries) {
        const entry = work.entry(delta.hlc);
        if (entry?.status !== "sent") continue;
        work.putEntry({ ...entry, code: error.code, message: error.message });
      }
    });
    pace.unitsMax = BATCH_DELTAS_MAX;
    for (const { delta } of batch.entries) pace.tried.add(delta.hlc);
    pace.stopped += batch.entries.length;
  }

  // --- pulling ------------------------------------------------------------------------------------

  private *pull(): Syncing<void> {
    const quarantined = yield* transaction(
      (work) => work.entries().filter((entry) => entry.status === "quarantined").length,
    );
    for (;;) {
      const at = yield* transaction((work) => work.position);
      const [page, isRebuilt] = yield* this.fetch(at, quarantined);
      const isTaken = yield* transaction(
        (work) => take(work, page, at, isRebuilt),
        (work) => needsOfPage(work, page, isRebuilt),
      );
      if (isTaken && !page.hasMore) {
        yield* this.followSchemas(page);
        return;
      }
    }
  }

  /** Apply a broadcast that continues exactly at the cursor; whether nothing is left to pull. */
  *hear(page: Page): Syncing<boolean> {
    return yield* transaction(
      (work) => {
        const at = work.position;
        if (!at.snapshot && at.cursor >= page.cursor) return true;
        const isSame = page.epoch === at.epoch && page.scope === at.scope;
        const follows =
          page.previous !== null && page.previous <= at.cursor && at.cursor < page.first;
        if (!isSame || at.snapshot || isNew(at) || !follows) return false;
        applyPage(work, page);
        return work.position.schemasOf === versionOf(page);
      },
      (work) => needsOfPage(work, page, false),
    );
  }

  private *fetch(at: Position, quarantined: number): Syncing<[Page, boolean]> {
    try {
      const page = yield* this.ask(at, quarantined);
      const compares = at.scope !== "" || showsAs(at, page);
      if (isNew(at) || (compares && !isBefore(at, page)))
        return [checked(at, page), isBefore(at, page)];
    } catch (error) {
      const isVoid =
        error instanceof LakeSyncError && ["CURSOR_EXPIRED", "INVALID_CURSOR"].includes(error.code);
      if (!isVoid) throw error;
    }
    const start: Position = { ...at, cursor: 0n, snapshot: "", scope: "" };
    const page = yield* this.ask(start, quarantined);
    const goesOn = isNew(at) || (page.snapshot !== "" && showsAs(at, page));
    return [checked(start, page), !goesOn || isBefore(at, page)];
  }

  private *ask(at: Position, quarantined: number): Syncing<Page> {
    const first = this.firstTables.length ? `begin:${this.firstTables.join()}` : "begin";
    const pull = pullJson({
      since: at.cursor,
      limit: this.pageDeltas,
      epoch: at.epoch,
      snapshot: isNew(at) ? first : at.snapshot,
      scope: at.scope,
      atLeast: this.lastCommit,
      quarantined,
    });
    return readPage(yield { request: { pull } });
  }

  private *followSchemas(page: Page): Syncing<void> {
    const version = versionOf(page);
    if ((yield* transaction((work) => work.position.schemasOf)) === version) return;
    let schemas: Position["schemas"] = { tables: [] };
    if (version) {
      try {
        schemas = readSchemas(yield { request: { schemas: {} } });
      } catch (error) {
        if (error instanceof LakeSyncError) return; // the page is applied, as was asked
        throw error;
      }
    }
    yield* transaction((work) => {
      work.set({ schemas, schemasOf: version });
      releaseUndeclared(work);
    });
  }
}

function* attempt(part: Syncing<void>): Syncing<LakeSyncError | null> {
  try {
    yield* part;
    return null;
  } catch (error) {
    if (error instanceof LakeSyncError) return error;
    throw error;
  }
}

// --- batches --------------------------------------------------------------------------------------

/** What one call of `push` remembers from batch to batch. */
interface Pace {
  unitsMax: number;
  restamps: number;
  readonly triesStopped: boolean;
  readonly tried: Set<Stamp>;
  isOpen: boolean;
  stopped: number;
}

function goOn(pace: Pace, result: BatchResult): void {
  if (result.blocked) throw result.blocked;
  if (result.stampedWrong) {
    pace.restamps += 1;
    if (pace.restamps > RESTAMPS_MAX) throw result.stampedWrong;
    return;
  }
  pace.restamps = 0;
  pace.unitsMax = Math.min(2 * pace.unitsMax, BATCH_DELTAS_MAX);
  if (!result.accepted && !result.quarantined) {
    throw fault(
      "INTERNAL_ERROR",
      "the gateway refused a whole push and named no delta; push again",
    );
  }
}

const isNewEntry = (entry: Entry): boolean =>
  ["pending", "sent", "unseen", "late"].includes(entry.status) && entry.code === "";
const wasAccepted = (entry: Entry): boolean =>
  entry.status === "offered" || entry.status === "lost";
const isReturning = (entries: readonly Entry[]): boolean => !!entries[0] && wasAccepted(entries[0]);
const waiting = (work: Work): Entry[] => [
  ...work.entries().filter(wasAccepted), // ahead of all others
  ...work.entries().filter(isNewEntry),
];
const isQuiet = (work: Work): boolean => waiting(work).length === 0;

/** Choose the next batch, and note that it leaves. */
function leave(work: Work, pace: Pace): Batch | null {
  const stopped = pace.triesStopped
    ? work.entries().filter((entry) => isStopped(entry) && !pace.tried.has(entry.delta.hlc))
    : [];
  const entries = waiting(work);
  if (!entries.length && !stopped.length) return null;
  if (work.position.mode === "restore") {
    throw fault("CURSOR_EXPIRED", "the gateway was restored; pull to the end, then push again");
  }
  const batch =
    nextBatch(unitsOf(entries), pace.unitsMax) ?? stoppedBatch(unitsOf(stopped), pace.unitsMax);
  if (!batch) return null;
  markSent(work, batch.entries);
  return { ...batch, epoch: work.position.epoch };
}

/** Each local transaction, and each edit that stands alone. */
function unitsOf(entries: readonly Entry[]): Entry[][] {
  const units: Entry[][] = [];
  for (const entry of entries) {
    const last = units.at(-1);
    if (last && entry.txn !== null && last[0]!.txn === entry.txn) last.push(entry);
    else units.push([entry]);
  }
  return units;
}

function nextBatch(units: readonly Entry[][], unitsMax: number): Batch | null {
  const [first, ...rest] = units;
  if (!first) return null;
  const others = rest.slice(0, unitsMax - 1);
  if (wasAccepted(first[0]!)) {
    // As one commit: else one commit could make an event of the next too late.
    const batch = filled(
      first,
      until(others, (unit) => wasAccepted(unit[0]!)),
      true,
    );
    return { ...batch, atomic: batch.entries.length > 1 };
  }
  if (first.length > 1) return filled(first, others, true);
  return filled(first, until(others, (unit) => unit.length === 1), false); // prettier-ignore
}

function stoppedBatch(units: readonly Entry[][], unitsMax: number): Batch | null {
  const [first, ...rest] = units;
  if (!first) return null;
  const others =
    first.length > 1 ? [] : until(rest, (unit) => unit.length === 1).slice(0, unitsMax - 1);
  return { ...filled(first, others, false), atomic: first.length > 1, wasStopped: true };
}

function until<T>(items: readonly T[], holds: (item: T) => boolean): T[] {
  const end = items.findIndex((item) => !holds(item));
  return items.slice(0, end < 0 ? items.length : end);
}

/** The first unit with as many others as there is room for. */
function filled(first: readonly Entry[], others: readonly Entry[][], atomic: boolean): Batch {
  const deltasMax = atomic ? ATOMIC_DELTAS_MAX : BATCH_DELTAS_MAX;
  const bytesMax = atomic ? ATOMIC_BYTES_MAX : BATCH_BYTES_MAX;
  const entries = [...first];
  let bytes = size(first);
  let units = 1;
  for (const unit of others) {
    bytes += size(unit);
    if (entries.length + unit.length > deltasMax || bytes > bytesMax) break;
    entries.push(...unit);
    units += 1;
  }
  return { entries, atomic, units, epoch: "", wasStopped: false };
}

const size = (entries: readonly Entry[]): number =>
  entries.reduce((sum, entry) => sum + sizeOf(entry), 0);

function unmarkStopped(work: Work, entries: readonly Entry[]): void {
  for (const { delta } of entries) {
    const entry = work.entry(delta.hlc);
    if (entry?.code && entry.status !== "quarantined")
      work.putEntry({ ...entry, code: "", message: "" });
  }
}

// --- positions ------------------------------------------------------------------------------------

const isNew = (at: Position): boolean => !at.cursor && !at.snapshot && !at.scope;
const isBefore = (at: Position, page: Page): boolean => at.epoch !== "" && page.epoch !== at.epoch;
/** Whether a page was decided by the same rules and claims as all rows so far. */
const showsAs = (at: Position, page: Page): boolean =>
  page.scope === at.scope || (!at.scope && page.scope === EVERYTHING);
/** Whether a pull from here reads tables again, as other rules decided a broadcast. */
export const readsAgain = (at: Position, page: Page): boolean =>
  !isNew(at) && !at.snapshot && page.scope !== "" && !showsAs(at, page);
const identityOf = (epoch: string): string => epoch.split(".")[0] ?? "";
const versionOf = (page: Page): string =>
  page.schemaVersion ? `${page.schemaVersion}|${page.epoch}|${page.scope}` : "";

function checkIdentity(named: string, epoch: string): void {
  if (named && identityOf(named) !== identityOf(epoch)) {
    throw fault(
      "ANOTHER_GATEWAY",
      "this is another gateway than the file's: rebind, or go back to it",
    );
  }
}

/** A page, unless it is another gateway's, or would lead backwards or nowhere. */
function checked(at: Position, page: Page): Page {
  checkIdentity(at.epoch, page.epoch);
  const before = page.snapshot ? at.snapshot : String(at.cursor);
  const stays = before === (page.snapshot || String(page.cursor)) && at.scope === page.scope;
  if ((page.cursor < at.cursor && !page.snapshot) || (page.hasMore && stays)) {
    throw fault("INTERNAL_ERROR", "the gateway's page leads nowhere; nothing was applied");
  }
  return page;
}

/** Bind the file to the gateway that answered first. */
function learnEpoch(work: Work, named: string, epoch: string): void {
  const { epoch: known } = work.position;
  if (named && !known)
    throw fault("ANOTHER_GATEWAY", "the file was given to another gateway meanwhile");
  if (!epoch) return;
  checkIdentity(known, epoch);
  if (!known) work.set({ epoch });
}

/** Apply a page; false if the file is no longer where it was asked for. */
function take(work: Work, page: Page, at: Position, isRebuilt: boolean): boolean {
  const now = work.position;
  const isThere = (["cursor", "epoch", "snapshot", "scope"] as const).every(
    (part) => now[part] === at[part],
  );
  if (!isThere) return false;
  // Other rules lose no edit; another buffer may have.
  if (isRebuilt) startAgain(work, isBefore(at, page) || showsAs(at, page));
  applyPage(work, page);
  return true;
}
