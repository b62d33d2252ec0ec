/** Edits: what an app changes, and what it decides about edits that were refused. */

import { byteLength, isBroken } from "./bytes.js";
import { fault } from "./errors.js";
import { typesOf } from "./declared.js";
import type { Json } from "./json.js";
import { apply, asRead, deltaId, view, type Delta, type Op } from "./merge.js";
import { keyOf, refold, store, table } from "./rows.js";
import { fold, known, notFound, rowKey, type Conflict, type Entry, type Work } from "./state.js";
import { DRIFT, type Stamp } from "./stamp.js";
import { encoded } from "./values.js";

const ROW_ID_BYTES_MAX = 512;
const DELTA_BYTES_MAX = 256 * 1024;
const COLUMNS_MAX = 500;

export interface Edit {
  readonly op: Exclude<Op, "REMOVE">;
  readonly table: string;
  readonly rowId: string;
  readonly columns?: Readonly<Record<string, unknown>>;
}

/** Columns whose canonical JSON is known. */
type Kept = ReadonlyMap<string, Json>;

/** Write edits, of one local transaction if there are several; all of them, or an error is thrown. */
export function write(work: Work, edits: readonly Edit[], isGroup = edits.length > 1): Delta[] {
  let txn: Stamp | null = null;
  return edits.map((edit) => {
    const delta = deltaOf(work, edit, new Map());
    if (isGroup) txn ??= delta.hlc;
    add(work, { delta, status: "pending", txn, code: "", message: "" });
    return delta;
  });
}

function deltaOf(work: Work, edit: Edit, kept: Kept): Delta {
  const given = edit.columns ?? {};
  const names = [...new Set([...kept.keys(), ...Object.keys(given)])];
  if (edit.op === "UPDATE" && !names.length) {
    throw fault("VALIDATION_ERROR", "an update names at least one column", "columns");
  }
  if (edit.op === "DELETE" && names.length) {
    throw fault("VALIDATION_ERROR", "a DELETE carries no columns", "columns");
  }
  if (names.length > COLUMNS_MAX) {
    throw fault("DELTA_TOO_LARGE", `a delta may carry ${COLUMNS_MAX} columns`, "columns");
  }
  if (new Set(names.map(fold)).size !== names.length) {
    throw fault(
      "VALIDATION_ERROR",
      "a column occurs twice: names in another case are one name",
      "columns",
    );
  }
  checkRowId(edit.rowId);
  const of = table(work, edit.table, names.sort(), false);
  const types = typesOf(of, work.position.schemas, edit.table);
  const columns = names.map((name): [string, Json] => {
    const known = Object.hasOwn(given, name) ? undefined : kept.get(name);
    // A schema may have grown since it was read: what is JSON is left to the gateway.
    return [name, known ?? encoded(name, types[name], given[name], of.types !== undefined)];
  });
  if (columns.reduce((size, [, value]) => size + byteLength(value), 0) > DELTA_BYTES_MAX) {
    throw fault("DELTA_TOO_LARGE", `a delta's values may hold ${DELTA_BYTES_MAX} bytes`, "columns");
  }
  const { op, rowId } = edit;
  return { op, table: of.name, rowId, clientId: work.clientId, hlc: work.now(), columns };
}

function checkRowId(rowId: string): void {
  const size = byteLength(rowId);
  if (!size || size > ROW_ID_BYTES_MAX || isBroken(rowId)) {
    throw fault("VALIDATION_ERROR", `a row id has 1 to ${ROW_ID_BYTES_MAX} bytes`, "rowId");
  }
}

function add(work: Work, entry: Entry): void {
  const key = keyOf(entry.delta);
  const row = work.row(key);
  work.putEntry(entry);
  store(work, key, apply(row.state, entry.delta), row.base ?? row.state, row.waiting + 1);
}

// --- refused edits --------------------------------------------------------------------------------

const refused = (work: Work, hlc: Stamp): Entry => {
  const entry = work.entry(hlc);
  if (entry?.status !== "quarantined") throw notFound("quarantined edit");
  return entry;
};

/** Let a refused edit be pushed again. */
export function retry(work: Work, hlc: Stamp): void {
  work.putEntry({ ...refused(work, hlc), status: "pending", code: "", message: "" });
}

/** Take an edit back: its row becomes what the others make of it. */
export function discard(work: Work, hlc: Stamp): void {
  const entry = work.entry(hlc);
  if (!entry) throw notFound("edit");
  takeBack(work, entry.delta);
  for (const [key, conflict] of work.conflicts) {
    if (conflict.ownHlc === hlc && isSameRow(conflict, entry.delta)) work.putConflict(key, null);
  }
}

const isSameRow = (one: { table: string; rowId: string }, other: Delta): boolean =>
  one.table === fold(other.table) && one.rowId === other.rowId;

function takeBack(work: Work, delta: Delta): void {
  // It may have arrived: its stamp is not issued again, if the gateway can have accepted it.
  if (delta.hlc <= work.position.cursor + DRIFT) work.accepted(delta.hlc);
  work.dropEntry(delta.hlc);
  refold(work, new Map([[keyOf(delta), null]]));
}

/** Replace a refused edit by one made now, with other values for some of its columns. */
export function amend(work: Work, hlc: Stamp, columns: Readonly<Record<string, unknown>>): Delta {
  const { delta } = refused(work, hlc);
  const { state } = work.row(keyOf(delta));
  const isMine = (name: string): boolean => {
    const write = state.columns.get(name);
    return write?.[0] === hlc && write[1] === work.clientId;
  };
  const kept = new Map(delta.columns.filter(([name]) => isMine(name)));
  takeBack(work, delta);
  const { op, table: of, rowId } = delta;
  const amended = deltaOf(work, { op: op as Edit["op"], table: of, rowId, columns }, kept);
  add(work, { delta: amended, status: "pending", txn: null, code: "", message: "" });
  followStamps(work, [[delta, amended.hlc]]);
  return amended;
}

/** Let conflicts follow edits that were stamped again. */
export function followStamps(work: Work, stamps: readonly (readonly [Delta, Stamp])[]): void {
  const stamped = new Map(stamps.map(([delta, hlc]) => [delta.hlc, { delta, hlc }]));
  const moved = work.conflicts.flatMap(([key, conflict]) => {
    const to = stamped.get(conflict.ownHlc);
    return to && isSameRow(conflict, to.delta)
      ? [{ key, conflict: { ...conflict, ownHlc: to.hlc } }]
      : [];
  });
  for (const { key } of moved) work.putConflict(key, null);
  for (const { key, conflict } of moved) work.putConflict(key, conflict);
}

export const idOf = (entry: Entry): string => deltaId(entry.delta);

// --- conflicts ------------------------------------------------------------------------------------

/** Which value a resolved conflict leaves: this client's, the other's, or one that is given. */
export type Keep = "mine" | "theirs" | "new";

/** Resolve a conflict: it is no longer listed; returns the edit that this took, if any. */
export function resolve(work: Work, id: string, keep: Keep, value: unknown): Delta | null {
  const conflict = work.conflicts.find(([key]) => key === id)?.[1];
  if (!conflict) throw notFound("conflict", "id");
  const delta = resolved(work, conflict, keep, value);
  work.putConflict(id, null);
  return delta;
}

function resolved(work: Work, conflict: Conflict, keep: Keep, value: unknown): Delta | null {
  const { column, own, other, won, deleted } = conflict;
  const given = (text: Json | null): Kept => new Map([[column, text ?? "null"]]);
  const ownStands = isOwnStanding(work, conflict);
  switch (keep) {
    case "new":
      return settle(work, conflict, new Map(), { [column]: value });
    case "mine":
      return ownStands ? null : settle(work, conflict, won && deleted ? null : given(own));
    case "theirs":
      if (!ownStands) return null;
      if (conflict.hidden) {
        throw fault("CONFLICT", "rules have hidden the other value: keep yours, or give a new one");
      }
      return settle(work, conflict, deleted && !won ? null : given(other));
    default:
      throw fault("VALIDATION_ERROR", 'keep is "mine", "theirs" or "new"', "keep");
  }
}

/** Whether the row still shows what this client wrote, by that write. */
function isOwnStanding(
  work: Work,
  { table: of, rowId, column, ownHlc, won, deleted }: Conflict,
): boolean {
  const row = asRead(work.row(rowKey(of, rowId)).state, work.deleteWins(of));
  if (won && deleted) return row.deleted === ownHlc && view(row) === null;
  const register = row.columns.get(column);
  return register?.[0] === ownHlc && register[1] === work.clientId;
}

/** Write the value that was chosen, or delete the row where that was. */
function settle(
  work: Work,
  { table: of, rowId }: Conflict,
  kept: Kept | null,
  columns: Edit["columns"] = {},
): Delta {
  const { state } = work.row(rowKey(of, rowId));
  // An update does not bring a deleted row back everywhere.
  const isThere = view(asRead(state, work.deleteWins(of))) !== null;
  const op = !kept ? "DELETE" : isThere ? "UPDATE" : "INSERT";
  const name = work.table(of)?.name ?? of;
  const delta = deltaOf(work, { op, table: name, rowId, columns }, kept ?? new Map());
  add(work, { delta, status: "pending", txn: null, code: "", message: "" });
  return delta;
}

// --- another gateway ------------------------------------------------------------------------------

/** Give the client to the next gateway that answers; returns how many edits it keeps or gives up. */
export function rebind(work: Work, keep: "edits" | "nothing"): number {
  const entries = work.entries();
  const isThere = (entry: Entry): boolean =>
    entry.status === "held_back" || entry.status === "offered";
  const going = keep === "edits" ? entries.filter(isThere) : entries;
  for (const entry of going) work.dropEntry(entry.delta.hlc);
  refold(work, new Map(going.map((entry) => [keyOf(entry.delta), null])));
  for (const entry of work.entries()) {
    if (entry.status !== "quarantined") work.putEntry({ ...entry, status: "pending" });
  }
  for (const [key, row] of work.loaded()) {
    if (row.echoes.size) work.putRow(key, { echoes: new Map() });
  }
  makeOld(
    work,
    work.tables.map(([key]) => key),
  );
  work.set({
    cursor: 0n,
    epoch: "",
    snapshot: "",
    scope: "",
    syncedMs: 0,
    mode: "replace",
    horizons: {},
  });
  for (const [key] of work.conflicts) work.putConflict(key, null);
  for (const [key] of work.journal) work.replaceHidden(key, null);
  return entries.filter((entry) => !isThere(entry)).length;
}

/** Make the rows of tables old: they are read again. */
export function makeOld(work: Work, tables: readonly string[]): void {
  const generation = work.position.generation + 1;
  work.set({ generation });
  for (const name of tables) {
    const of = work.table(name);
    if (of) work.putTable({ ...of, generation });
  }
}

export const stateOf = (work: Work, key: string) => known(work.row(key));
