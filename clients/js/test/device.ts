/** A client in memory that lets the events of a trace happen, and says what is seen of it. */

import { amend, discard, rebind, retry, write, type Edit } from "../src/edits.js";
import { LakeSyncError } from "../src/errors.js";
import { parse, type Value } from "../src/json.js";
import { asRead, view, type Delta } from "../src/merge.js";
import { readPage, type Request } from "../src/messages.js";
import { fold, idOf, lastOf, newMemory, rowKey, tableOf, Work, type Row } from "../src/state.js";
import { Syncer, type Effect, type Mode, type Syncing } from "../src/sync.js";

// eslint-disable-next-line @typescript-eslint/no-explicit-any -- JSON of a trace
export type Fields = Record<string, any>;

export class Device {
  private memory = newMemory();
  private readonly rows = new Map<string, Row>();
  private wallMs = 0;
  private syncer: Syncer;
  private syncing: Syncing<unknown> | null = null;
  private seen: Fields = { outbox: [], rows: {}, conflicts: [] };

  constructor(private readonly given: Fields) {
    this.syncer = this.newSyncer();
  }

  private newSyncer(): Syncer {
    return new Syncer(this.given.clientId, this.given.pageDeltas, this.given.firstTables);
  }

  do(event: Fields): Fields {
    this.wallMs = event.wallMs;
    const seen = this.happen(event);
    return { ...seen, ...this.changes() };
  }

  private happen(event: Fields): Fields {
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
        return this.goOn(undefined, new LakeSyncError("NOT_THE_GATEWAY", "something else answered"));
      case "broadcast":
        return this.hear(event);
      case "crash":
        return this.crash();
    }
    throw new Error(`no such event: ${event.do}`);
  }

  private attempt(body: (work: Work) => unknown): Fields {
    try {
      this.transaction(body);
      return {};
    } catch (error) {
      if (error instanceof LakeSyncError) return { refused: error.code };
      throw error;
    }
  }

  private transaction<T>(body: (work: Work) => T): T {
    const work = new Work(this.memory, this.given.clientId, this.rows, this.wallMs);
    try {
      const result = body(work);
      for (const [key, row] of work.commit().rows) {
        if (row === null) this.rows.delete(key);
        else this.rows.set(key, row);
      }
      return result;
    } catch (error) {
      this.memory.last = lastOf(this.memory.position, this.memory.outbox.values());
      throw error;
    }
  }

  /** Give the sync an answer, and let it go on to its next request, or its end. */
  private goOn(answer?: unknown, error?: LakeSyncError): Fields {
    const syncing = this.syncing!;
    try {
      let step = error ? syncing.throw(error) : syncing.next(answer);
      while (!step.done) {
        const effect = step.value;
        if ("request" in effect) return { request: effect.request satisfies Request };
        step = this.carryOut(syncing, effect);
      }
      this.syncing = null;
      return { synced: "ok" };
    } catch (thrown) {
      this.syncing = null;
      if (thrown instanceof LakeSyncError) return { synced: thrown.code };
      throw thrown;
    }
  }

  private carryOut(syncing: Syncing<unknown>, effect: Effect) {
    if (!("transaction" in effect)) return syncing.next(this.wallMs);
    let result: unknown;
    try {
      result = this.transaction(effect.transaction);
    } catch (error) {
      return syncing.throw(error);
    }
    return syncing.next(result);
  }

  private hear(event: Fields): Fields {
    const page = readPage({ ...event.body, first: event.first, previous: event.previous });
    const hearing = this.syncer.hear(page);
    let step = hearing.next();
    while (!step.done) step = this.carryOut(hearing, step.value) as typeof step;
    return { applied: step.value };
  }

  private crash(): Fields {
    this.syncing = null;
    this.syncer = this.newSyncer();
    this.memory.last = lastOf(this.memory.position, this.memory.outbox.values());
    return {};
  }

  // --- what can be seen ---------------------------------------------------------------------------

  private changes(): Fields {
    const now: Fields = { outbox: this.outbox(), rows: this.shown(), conflicts: this.conflicts() };
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
    const work = new Work(this.memory, this.given.clientId, this.rows, this.wallMs);
    return work.entries().map(({ delta, code }) => ({ ...deltaFields(delta), ...(code && { code }) }));
  }

  private shown(): Fields {
    const work = new Work(this.memory, this.given.clientId, this.rows, this.wallMs);
    const shown: Fields = {};
    for (const table of this.given.tables as string[]) {
      const rows: Fields = {};
      for (const [key, row] of [...this.rows].sort()) {
        if (tableOf(key) !== fold(table)) continue;
        const columns = view(asRead(row.state, work.deleteWins(table)));
        if (columns) rows[idOf(key)] = plain(columns);
      }
      if (Object.keys(rows).length) shown[table] = rows;
    }
    return shown;
  }

  private conflicts(): Fields[] {
    const name = (table: string) => this.memory.tables.get(table)?.name ?? table;
    const value = (text: string | null) => (text === null ? null : parse(text));
    return [...this.memory.conflicts.values()]
      .map((each) => ({
        table: name(each.table),
        rowId: each.rowId,
        column: each.column,
        own: value(each.own),
        other: value(each.other),
        otherClient: each.otherClient,
        deleted: each.deleted,
        won: each.won,
        hidden: each.hidden,
      }))
      .sort((one, other) => (sorted(one) < sorted(other) ? -1 : 1)); // those of a page have no order
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
    [...columns].filter(([, value]) => value !== "null").map(([name, value]) => [name, parse(value)]),
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
  JSON.stringify(value, (_, each: unknown) =>
    typeof each === "object" && each !== null && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).sort(([one], [other]) => (one < other ? -1 : 1)))
      : each,
  ) ?? "";

export const keyFor = rowKey;
