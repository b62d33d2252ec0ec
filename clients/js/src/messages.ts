/** Messages of the gateway as JSON: pushes and pulls that leave, receipts and pages that arrive. */

import { fault, LakeSyncError } from "./errors.js";
import { canonical, parse, type Value } from "./json.js";
import { deltaId, type Delta, type Op } from "./merge.js";
import type { Schemas } from "./state.js";
import type { Stamp } from "./stamp.js";

export interface Outcome {
  readonly index: number;
  readonly deltaId: string;
  /** Why it was refused; null for a duplicate, which is accepted. */
  readonly error: LakeSyncError | null;
}

export interface Receipt {
  readonly serverHlc: Stamp;
  readonly accepted: number;
  readonly outcomes: readonly Outcome[];
  readonly serverTimeMs: number;
  readonly epoch: string;
}

/** Tables that are read again from here on. */
export interface Resync {
  readonly tables: readonly string[];
  /** If there, all other tables are read again too, but these. */
  readonly named: readonly string[] | null;
  readonly horizons: Readonly<Record<string, Stamp>>;
  readonly omitted: Readonly<Record<string, readonly string[]>>;
}

/** A delta that a page brings, with the id that the page gives it. */
export type Arrived = Delta & { readonly id: string };

export interface Page {
  readonly deltas: readonly Arrived[];
  readonly cursor: Stamp;
  readonly hasMore: boolean;
  readonly epoch: string;
  readonly snapshot: string;
  readonly scope: string;
  readonly resync: Resync | null;
  readonly schemaVersion: number;
  /** Of a broadcast: the first commit in it, and the one before that its reader sees. */
  readonly first: Stamp;
  readonly previous: Stamp | null;
}

export interface Push {
  readonly clientId: string;
  readonly deltas: readonly Delta[];
  readonly atomic: boolean;
  /** The gateway's epoch; empty if the client knows none. */
  readonly epoch: string;
}

export interface Pull {
  readonly since: Stamp;
  readonly limit: number;
  readonly epoch: string;
  readonly snapshot: string;
  readonly scope: string;
  readonly atLeast: Stamp;
  readonly quarantined: number;
}

export type Request =
  | { push: object }
  | { pull: object }
  | { schemas: object }
  /** Any other: its method, its path below the gateway, and its body. */
  | { call: [method: string, path: string, body: string | null] };

export const pushJson = (push: Push): object => ({
  clientId: push.clientId,
  deltas: push.deltas.map(deltaJson),
  lastSeenHlc: "0",
  atomic: push.atomic,
  ...(push.epoch && { epoch: push.epoch }),
  ownCursor: true,
});

const deltaJson = (delta: Delta): object => ({
  op: delta.op,
  table: delta.table,
  rowId: delta.rowId,
  clientId: delta.clientId,
  columns: delta.columns.map(([column, value]) => ({ column, value: parse(value) })),
  hlc: String(delta.hlc),
  deltaId: deltaId(delta),
});

export const pullJson = (pull: Pull): object => ({
  since: String(pull.since),
  limit: pull.limit,
  ...(pull.epoch && { epoch: pull.epoch }),
  ...(pull.snapshot && { snapshot: pull.snapshot }),
  ...(pull.scope && { scope: pull.scope }),
  quarantined: pull.quarantined,
  ...(pull.atLeast && { atLeast: String(pull.atLeast) }),
});

type Fields = Record<string, Value | undefined>;

export function readReceipt(body: unknown): Receipt {
  const fields = object(body);
  const epoch = text(fields, "epoch");
  const results = list(fields, "results").map((item): Outcome => {
    const each = object(item);
    const code = text(each, "code");
    const error = code
      ? new LakeSyncError(code, text(each, "error"), text(each, "field") || null)
      : null;
    return { index: count(each, "index"), deltaId: text(each, "deltaId"), error };
  });
  return {
    serverHlc: readStamp(fields, "serverHlc"),
    accepted: count(fields, "accepted"),
    outcomes: results,
    serverTimeMs: count(fields, "serverTimeMs"),
    epoch,
  };
}

export function readPage(body: unknown): Page {
  const fields = object(body);
  return {
    deltas: list(fields, "deltas").map(readDelta),
    cursor: readStamp(fields, "serverHlc"),
    hasMore: fields.hasMore === true,
    epoch: text(fields, "epoch"),
    snapshot: text(fields, "snapshot"),
    scope: text(fields, "scope"),
    resync: fields.resync === undefined ? null : readResync(fields.resync),
    schemaVersion: count(fields, "schemaVersion"),
    first: fields.first === undefined ? 0n : readStamp(fields, "first"),
    previous: fields.previous === undefined ? null : readStamp(fields, "previous"),
  };
}

function readDelta(item: Value): Arrived {
  const fields = object(item);
  const columns = list(fields, "columns", []).map((each): [string, string] => {
    const column = object(each);
    return [text(column, "column"), canonical(column.value)];
  });
  return {
    op: text(fields, "op") as Op,
    table: text(fields, "table"),
    rowId: text(fields, "rowId"),
    clientId: text(fields, "clientId"),
    hlc: readStamp(fields, "hlc"),
    columns,
    id: text(fields, "deltaId"),
  };
}

function readResync(item: Value): Resync {
  const fields = object(item);
  const names = (value: Value | undefined): string[] => list({ value }, "value", []).map(String);
  const horizons = object(fields.tombstoneHorizons ?? {});
  return {
    tables: names(fields.tables),
    named: fields.named === undefined ? null : names(fields.named),
    horizons: Object.fromEntries(
      Object.keys(horizons).map((name) => [name, readStamp(horizons, name)]),
    ),
    omitted: Object.fromEntries(
      Object.entries(object(fields.omitted ?? {})).map(([name, columns]) => [name, names(columns)]),
    ),
  };
}

export const readSchemas = (body: unknown): Schemas => {
  const tables = list(object(body), "tables", list(object(body), "schemas", []));
  return { tables: tables.map((each) => object(each) as unknown as Schemas["tables"][number]) };
};

function object(value: unknown): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw notOurs();
  return value as Fields;
}

function list(fields: Fields, name: string, otherwise?: Value[]): Value[] {
  const value = fields[name] ?? otherwise;
  if (!Array.isArray(value)) throw notOurs();
  return value;
}

function text(fields: Fields, name: string): string {
  const value = fields[name] ?? "";
  if (typeof value !== "string") throw notOurs();
  return value;
}

function count(fields: Fields, name: string): number {
  const value = fields[name] ?? 0;
  if (typeof value !== "number" || value < 0) throw notOurs();
  return value;
}

function readStamp(fields: Fields, name: string): Stamp {
  const value = fields[name];
  if (typeof value === "string" && /^[0-9]{1,19}$/.test(value)) return BigInt(value);
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return BigInt(value);
  throw notOurs();
}

export const notOurs = (): LakeSyncError =>
  fault(
    "NOT_THE_GATEWAY",
    "the answer is not the gateway's: another address, a proxy, a login page",
  );
