/** Rows and tables within a transaction: states, bases and edits together, and names in one spelling. */

import { fault, LakeSyncError } from "./errors.js";
import { EMPTY, fold as merge, isTombstone, type Delta, type State } from "./merge.js";
import { fold, known, rowKey, type Table, type Work } from "./state.js";

const NAME = /^[A-Za-z_][A-Za-z0-9_]{0,63}$/;

export function checkName(name: string, field: string): void {
  if (!NAME.test(name)) {
    throw fault(
      "VALIDATION_ERROR",
      `${name.slice(0, 80)} is not a name: letters, digits and _`,
      field,
    );
  }
}

/**
 * Merge rows again: their bases, given or as stored, and their edits in the outbox.
 *
 * @param bases - new bases by row; null for the base that is stored
 */
export function refold(work: Work, bases: ReadonlyMap<string, State | null>): void {
  for (const [key, given] of bases) {
    const base = given ?? known(work.row(key));
    const deltas = work.waiting(key);
    store(work, key, merge(deltas, base), deltas.length ? base : null, deltas.length);
  }
}

/** Store a row's state, and its base if edits of it wait. */
export function store(
  work: Work,
  key: string,
  state: State,
  base: State | null,
  waiting: number,
): void {
  work.putRow(key, { state, base, waiting, tombstone: isTombstone(state) ? 0n : null });
}

/** Move deltas that left the outbox for the gateway into the base of their row. */
export function acknowledge(work: Work, key: string, deltas: readonly Delta[]): void {
  const row = work.row(key);
  const waiting = Math.max(row.waiting - deltas.length, 0);
  work.putRow(key, { base: waiting ? merge(deltas, known(row)) : null, waiting });
}

/**
 * The table of an edit or a page, with these columns; made and widened as needed.
 *
 * The gateway's spelling of a name is taken over. An app's other spelling of a name is NAME_TAKEN,
 * unless the gateway has refused the first one.
 */
export function table(
  work: Work,
  name: string,
  columns: readonly string[],
  isReceived: boolean,
): Table {
  let known = work.table(name);
  if (!known) {
    if (!isReceived) checkTable(name);
    known = { name, columns: [], generation: 0 };
    work.putTable(known);
  }
  if (known.name !== name) {
    mayRespell(work, known, known.name, name, isReceived, "table");
    known = { ...known, name };
    work.putTable(known);
    respell(work, known, new Map());
  }
  for (const column of columns) {
    if (known.columns.includes(column)) continue;
    checkName(column, "columns.column");
    const first: string | undefined = known.columns.find((other) => fold(other) === fold(column));
    if (first === undefined) {
      known = { ...known, columns: [...known.columns, column] };
      work.putTable(known);
      continue;
    }
    mayRespell(work, known, first, column, isReceived, "column");
    known = {
      ...known,
      columns: known.columns.map((other) => (other === first ? column : other)),
      ...renamedTypes(known, first, column),
    };
    work.putTable(known);
    respell(work, known, new Map([[first, column]]));
  }
  return known;
}

/** Whether columns have another spelling than those of the table, so that all its rows are read. */
export function isRespelled(work: Work, table: string, columns: readonly string[]): boolean {
  const names = work.table(table)?.columns ?? [];
  return columns.some(
    (name) => !names.includes(name) && names.some((other) => fold(other) === fold(name)),
  );
}

function checkTable(name: string): void {
  checkName(name, "table");
  if (fold(name).startsWith("sqlite_")) {
    throw fault(
      "VALIDATION_ERROR",
      `${name} is not a table's name: sqlite_ is SQLite's own`,
      "table",
    );
  }
}

function mayRespell(
  work: Work,
  known: Table,
  first: string,
  name: string,
  isReceived: boolean,
  what: string,
): void {
  const wasRefused = work.entries().some(
    (entry) => isOf(entry.delta, known) && entry.status === "quarantined" && entry.code === "NAME_TAKEN",
  ); // prettier-ignore
  if (isReceived || wasRefused) return;
  throw new LakeSyncError(
    "NAME_TAKEN",
    `the ${what} ${name} is there already, spelled ${first}: use that spelling`,
    what === "table" ? "table" : name,
  );
}

const isOf = (delta: Delta, of: Table): boolean => fold(delta.table) === fold(of.name);

/** Give a table's edits its spelling; those that were refused for theirs are pushed again. */
function respell(work: Work, of: Table, columns: ReadonlyMap<string, string>): void {
  for (const entry of work.entries()) {
    if (!isOf(entry.delta, of)) continue;
    const renamed = entry.delta.columns.map(
      ([name, value]): [string, string] => [columns.get(name) ?? name, value],
    ); // prettier-ignore
    const ordered = columns.size ? renamed.sort(byName) : renamed;
    const delta = { ...entry.delta, table: of.name, columns: ordered };
    const wasRefused =
      entry.status === "quarantined" && ["NAME_TAKEN", "TABLE_NOT_DECLARED"].includes(entry.code);
    work.putEntry({
      ...entry,
      delta,
      ...(wasRefused && { status: "pending" as const, code: "", message: "" }),
    });
  }
  if (!columns.size) return;
  for (const [key, row] of work.loaded(fold(of.name))) {
    work.putRow(key, {
      state: renamedIn(row.state, columns),
      base: row.base && renamedIn(row.base, columns),
    });
  }
}

function renamedTypes({ types, indexes }: Table, from: string, to: string): Partial<Table> {
  if (!types) return {};
  const renamed = (name: string): string => (name === from ? to : name);
  const all = Object.entries(types).map(([name, type]): [string, string] => [renamed(name), type]);
  const moved = indexes?.map((index) => ({ ...index, columns: index.columns.map(renamed) }));
  return { types: Object.fromEntries(all), ...(moved && { indexes: moved }) };
}

function renamedIn(state: State, columns: ReadonlyMap<string, string>): State {
  if (![...columns.keys()].some((name) => state.columns.has(name))) return state;
  const renamed = new Map(
    [...state.columns].map(([name, write]) => [columns.get(name) ?? name, write]),
  );
  return { ...state, columns: renamed };
}

const byName = (one: readonly [string, string], other: readonly [string, string]): number =>
  one[0] < other[0] ? -1 : 1;

export const keyOf = (delta: Delta): string => rowKey(delta.table, delta.rowId);

/** A row without some of a client's writes. */
export function without(state: State, clientId: string, writes: ReadonlySet<bigint>): State {
  const columns = new Map(
    [...state.columns].filter(([, write]) => write[1] !== clientId || !writes.has(write[0])),
  );
  return { alive: writes.has(state.alive) ? 0n : state.alive, deleted: state.deleted, columns };
}

export const EMPTY_BASES = (keys: Iterable<string>): Map<string, State> =>
  new Map([...keys].map((key) => [key, EMPTY]));
