/** A client that lets the events of a trace happen, and says what is seen of it. */

import { amend, discard, rebind, retry, write, type Edit } from "../src/edits.js";
import { LakeSyncError } from "../src/errors.js";
import { parse, type Value } from "../src/json.js";
import { asRead, view, type Delta } from "../src/merge.js";
import { readPage, type Request } from "../src/messages.js";
import { deleteWins, fold, type Work } from "../src/state.js";
import type { Storage } from "../src/storage.js";
import { Syncer, type Effect, type Mode, type Syncing } from "../src/sync.js";

export type Fields = Record<string, any>;

export class Device {
  private wallMs = 0;
  private syncer: Syncer;
  private syncing: Syncing<unknown> | null = null;
  private seen: Fields = { outbox: [], rows: {}, conflicts: [] };

  /**
   * @param open - opens the storage, again after each crash
   */
  private constructor(
    private readonly given: Fields,
    private readonly open: (device: { clientId: string; now: () => number }) => Promise<Storage>,
    private storage: Storage,
  ) {
    this.syncer = this.newSyncer();
  }

  static async open(
    given: Fields,
    open: (device: { clientId: string; now: () => number }) => Promise<Storage>,
  ): Promise<Device> {
    const clock = { device: null as Device | null };
    const storage = await open({ clientId: given.clientId, now: () => clock.device?.wallMs ?? 0 });
    const device = new Device(given, open, storage);
    clock.device = device;
    return device;
  }

  close(): void {
    this.storage.close();
  }

  private newSyncer(): Syncer {
    return new Syncer(this.given.clientId, this.given.pageDeltas, this.given.firstTables);
  }

  async do(event: Fields): Promise<Fields> {
    this.wallMs = event.wallMs;
    const seen = await this.happen(event);
    return { ...seen, ...(await this.changes()) };
  }

  private async happen(event: Fields): Promise<Fields> {
    switch (event.do) {
      case "edit":
        return this.attempt((work) => write(work, event.edits as Edit[]));
      case "retry":
        return this.attempt((work) => retry(work, BigInt(event.hlc)));
      case "discard":
        return this.attempt((work) => discard(work, BigInt(event.hlc)));
      case "amend":
        return this.attempt((work) => amend(work, BigInt(event.hlc), event.columns));
      case "rebind":
        return this.attempt((work) => rebind(work, event.keep));
      case "sync":
        this.syncing = this.syncer.sync(event.mode as Mode);
        return this.goOn();
      case "answer":
        return "error" in event
          ? this.goOn(undefined, errorOf(event.error))
          : this.goOn(event.body);
      case "lost":
        return this.goOn(undefined, new LakeSyncError("UNREACHABLE", "nothing came back"));
      case "foreign":
        return this.goOn(
          undefined,
          new LakeSyncError("NOT_THE_GATEWAY", "something else answered"),
        );
      case "broadcast":
        return this.hear(event);
      case "crash":
        return this.crash();
    }
    throw new Error(`no such event: ${event.do}`);
  }

  private async attempt(body: (work: Work) => unknown): Promise<Fields> {
    try {
      await this.storage.transaction(body, () => ({ all: true }));
      return {};
    } catch (error) {
      if (error instanceof LakeSyncError) return { refused: error.code };
      throw error;
    }
  }

  /** Give the sync an answer, and let it go on to its next request, or its end. */
  private async goOn(answer?: unknown, error?: LakeSyncError): Promise<Fields> {
    const syncing = this.syncing!;
    try {
      let step = error ? syncing.throw(error) : syncing.next(answer);
      while (!step.done) {
        const effect = step.value;
        if ("request" in effect) return { request: effect.request satisfies Request };
        step = await this.carryOut(syncing, effect);
      }
      this.syncing = null;
      return { synced: "ok" };
    } catch (thrown) {
      this.syncing = null;
      if (thrown instanceof LakeSyncError) return { synced: thrown.code };
      throw thrown;
    }
  }

  private async carryOut<T>(
    syncing: Syncing<T>,
    effect: Effect,
  ): Promise<IteratorResult<Effect, T>> {
    if (!("transaction" in effect)) return syncing.next(this.wallMs);
    let result: unknown;
    try {
      ({ result } = await this.storage.transaction(effect.transaction, effect.needs));
    } catch (error) {
      return syncing.throw(error);
    }
    return syncing.next(result);
  }

  private async hear(event: Fields): Promise<Fields> {
    const page = readPage({ ...event.body, first: event.first, previous: event.previous });
    const hearing = this.syncer.hear(page);
    let step = hearing.next();
    while (!step.done) step = await this.carryOut(hearing, step.value);
    return { applied: step.value };
  }

  private async crash(): Promise<Fields> {
    this.syncing = null;
    this.syncer = this.newSyncer();
    this.storage.close();
    this.storage = await this.open({ clientId: this.given.clientId, now: () => this.wallMs });
    return {};
  }

  // --- what can be seen ---------------------------------------------------------------------------

  private async changes(): Promise<Fields> {
    const now: Fields = {
      outbox: this.outbox(),
      rows: await this.shown(),
      conflicts: this.conflicts(),
    };
    const changed: Fields = {};
    for (const name of ["outbox", "conflicts"]) {
      if (JSON.stringify(now[name]) !== JSON.stringify(this.seen[name])) changed[name] = now[name];
    }
    const rows = changedRows(this.seen.rows, now.rows);
    if (Object.keys(rows).length) changed.rows = rows;
    this.seen = now;
    return changed;
  }

  private outbox(): Fields[] {
    return [...this.storage.memory.outbox.values()]
      .sort((one, other) => (one.delta.hlc < other.delta.hlc ? -1 : 1))
      .map(({ delta, code }) => ({ ...deltaFields(delta), ...(code && { code }) }));
  }

  private async shown(): Promise<Fields> {
    const { schemas } = this.storage.memory.position;
    const shown: Fields = {};
    for (const table of this.given.tables as string[]) {
      const rows: Fields = {};
      for (const [rowId, row] of await this.storage.rows(fold(table))) {
        const columns = view(asRead(row.state, deleteWins(schemas, table)));
        if (columns) rows[rowId] = plain(columns);
      }
      if (Object.keys(rows).length) shown[table] = rows;
    }
    return shown;
  }

  private conflicts(): Fields[] {
    const { tables, conflicts } = this.storage.memory;
    const value = (text: string | null) => (text === null ? null : parse(text));
    return [...conflicts.values()].map((each) => ({
      table: tables.get(each.table)?.name ?? each.table,
      rowId: each.rowId,
      column: each.column,
      own: value(each.own),
      other: value(each.other),
      otherClient: each.otherClient,
      deleted: each.deleted,
      won: each.won,
      hidden: each.hidden,
    }));
  }
}

const errorOf = (fields: Fields): LakeSyncError =>
  new LakeSyncError(fields.code, fields.error, null, fields.retryAfterS ?? 0);

const deltaFields = (delta: Delta): Fields => ({
  op: delta.op,
  table: delta.table,
  rowId: delta.rowId,
  columns: delta.columns.map(([column, value]) => ({ column, value: parse(value) })),
  hlc: String(delta.hlc),
});

const plain = (columns: ReadonlyMap<string, string>): Record<string, Value> =>
  Object.fromEntries(
    [...columns]
      .filter(([, value]) => value !== "null")
      .map(([name, value]) => [name, parse(value)]),
  );

function changedRows(before: Fields, after: Fields): Fields {
  const changed: Fields = {};
  for (const table of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const rows: Fields = {};
    const [old, now] = [before[table] ?? {}, after[table] ?? {}];
    for (const id of new Set([...Object.keys(old), ...Object.keys(now)])) {
      if (sorted(old[id]) !== sorted(now[id])) rows[id] = now[id] ?? null;
    }
    if (Object.keys(rows).length) changed[table] = rows;
  }
  return changed;
}

/** JSON with its keys in order. */
export const sorted = (value: unknown): string =>
  JSON.stringify(value ?? null, (_, each: unknown) =>
    typeof each === "object" && each !== null && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).sort(([one], [other]) => (one < other ? -1 : 1)))
      : each,
  );
