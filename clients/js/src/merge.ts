/**
 * Merging: how the deltas of a row become one row, in any order.
 *
 * The greatest write of a column wins: by its stamp, then its client id, then its canonical value,
 * texts by their UTF-8 bytes. What is at or below `deleted` is gone. Laws M1-M10: docs/spec/merge.md.
 */

import { compareBytes, sha256 } from "./bytes.js";
import type { Json } from "./json.js";
import { max, type Stamp } from "./stamp.js";

export type Op = "INSERT" | "UPDATE" | "DELETE" | "REMOVE";
export type Columns = readonly (readonly [name: string, value: Json])[];

/** One client's change of some columns of one row. */
export interface Delta {
  readonly op: Op;
  readonly table: string;
  readonly rowId: string;
  readonly clientId: string;
  readonly hlc: Stamp;
  readonly columns: Columns;
}

/** One column's winning write. */
export type Register = readonly [hlc: Stamp, clientId: string, value: Json];

/** All that is known of a row, in normal form. */
export interface State {
  readonly alive: Stamp;
  readonly deleted: Stamp;
  readonly columns: ReadonlyMap<string, Register>;
}

/** Whom deltas belong to that nobody made. */
export const NOBODY = "_";
export const EMPTY: State = { alive: 0n, deleted: 0n, columns: new Map() };

export const isEmpty = (state: State): boolean =>
  !state.alive && !state.deleted && !state.columns.size;

const greater = (one: Register, other: Register | undefined): boolean => {
  if (other === undefined) return true;
  if (one[0] !== other[0]) return one[0] > other[0];
  return (compareBytes(one[1], other[1]) || compareBytes(one[2], other[2])) > 0;
};

export const equal = (one: Register | undefined, other: Register | undefined): boolean =>
  one === other ||
  (!!one && !!other && one[0] === other[0] && one[1] === other[1] && one[2] === other[2]);

/** Merge one delta into a row; the same object if it changes nothing. */
export function apply(state: State, delta: Delta): State {
  const { hlc, clientId, op } = delta;
  if (hlc <= state.deleted || op === "REMOVE") return state;
  if (op === "DELETE") return normal(state.alive, hlc, state.columns);
  let columns: Map<string, Register> | null = null;
  for (const [name, value] of delta.columns) {
    const write: Register = [hlc, clientId, value];
    if (greater(write, state.columns.get(name)))
      (columns ??= new Map(state.columns)).set(name, write);
  }
  const isNewer = op === "INSERT" && hlc > state.alive;
  if (!columns && !isNewer) return state;
  return {
    alive: isNewer ? hlc : state.alive,
    deleted: state.deleted,
    columns: columns ?? state.columns,
  };
}

/** Merge many deltas of one row. */
export const fold = (deltas: Iterable<Delta>, start: State = EMPTY): State => {
  let state = start;
  for (const delta of deltas) state = apply(state, delta);
  return state;
};

function normal(alive: Stamp, deleted: Stamp, columns: ReadonlyMap<string, Register>): State {
  const kept = new Map([...columns].filter(([, write]) => write[0] > deleted));
  return { alive: alive > deleted ? alive : 0n, deleted, columns: kept };
}

/** A row as its table reads it: where deletes win, it exists only while it is alive. */
export const asRead = (state: State, deleteWins: boolean): State =>
  deleteWins && !state.alive && state.columns.size ? { ...EMPTY, deleted: state.deleted } : state;

/** The columns that an app sees; null if there is no row. */
export const view = (state: State): ReadonlyMap<string, Json> | null =>
  state.alive || state.columns.size
    ? new Map([...state.columns].map(([name, write]) => [name, write[2]]))
    : null;

export const isTombstone = (state: State): boolean =>
  !!state.deleted && !state.alive && !state.columns.size;

/** The part of a row above the horizon of forgotten deletions; the same object if that is all. */
export function newerThan(state: State, horizon: Stamp): State {
  const columns = new Map([...state.columns].filter(([, write]) => write[0] > horizon));
  const isOld = state.alive > 0n && state.alive <= horizon;
  if (columns.size === state.columns.size && !isOld) return state;
  return { alive: isOld ? 0n : state.alive, deleted: state.deleted, columns };
}

/** The fewest deltas that merge to a state, in stamp order; `nobody` made what no column tells of. */
export function deltasOf(table: string, rowId: string, state: State, nobody: string): Delta[] {
  const writes = new Map<string, { hlc: Stamp; clientId: string; columns: [string, Json][] }>();
  const at = (hlc: Stamp, clientId: string) => {
    const key = `${hlc} ${clientId}`;
    const write = writes.get(key) ?? { hlc, clientId, columns: [] };
    writes.set(key, write);
    return write;
  };
  for (const name of [...state.columns.keys()].sort()) {
    const [hlc, clientId, value] = state.columns.get(name)!;
    at(hlc, clientId).columns.push([name, value]);
  }
  const inserters = [...writes.values()].filter((write) => write.hlc === state.alive);
  let inserter = inserters.map((write) => write.clientId).sort(compareBytes)[0];
  if (state.alive && inserter === undefined) {
    inserter = nobody;
    at(state.alive, nobody);
  }
  const ordered = [...writes.values()].sort((one, other) =>
    one.hlc === other.hlc
      ? compareBytes(one.clientId, other.clientId)
      : one.hlc < other.hlc
        ? -1
        : 1,
  );
  const deltas: Delta[] = ordered.map(({ hlc, clientId, columns }) => {
    const op = hlc === state.alive && clientId === inserter ? "INSERT" : "UPDATE";
    return { op, table, rowId, clientId, hlc, columns };
  });
  if (!state.deleted) return deltas;
  return [
    { op: "DELETE", table, rowId, clientId: nobody, hlc: state.deleted, columns: [] },
    ...deltas,
  ];
}

/** A change's id: the same in every language. Law I4: docs/spec/identity.md. */
export function deltaId(delta: Delta): string {
  const text = JSON.stringify;
  const columns = delta.columns.map(([name, value]) => `{"column":${text(name)},"value":${value}}`);
  return sha256(
    `{"clientId":${text(delta.clientId)},"columns":[${columns.join()}],"hlc":"${delta.hlc}",` +
      `"rowId":${text(delta.rowId)},"table":${text(delta.table)}}`,
  );
}

/** The greatest stamp of deltas. */
export const newest = (deltas: Iterable<Delta>): Stamp => {
  let at = 0n;
  for (const delta of deltas) at = max(at, delta.hlc);
  return at;
};
