/** Queries: which rows of a table have some values, and in which order. */

import { typesOf } from "./declared.js";
import { planned, type Plan, type Range } from "./indexes.js";
import type { Json } from "./json.js";
import { asRead, view } from "./merge.js";
import { placeOf, placeOfId } from "./places.js";
import { deleteWins, fold, idOf, rowKey, type Memory, type Row } from "./state.js";
import { cells, encoded, type Cell, type Types } from "./values.js";

export type RowValues = Readonly<Record<string, Cell>>;
export type QueriedRow = RowValues & { readonly _row_id: string };

export interface Query {
  readonly table: string;
  /** Columns with the value that each must have. */
  readonly where?: Readonly<Record<string, unknown>>;
  /**
   * A column, or several; with `-` before its name in descending order. Rows that are equal in all of
   * them follow by their ids, in the direction of the last one.
   */
  readonly order?: string | readonly string[];
  readonly limit?: number;
}

const ROW_ID = "_row_id";
/** How many times more rows are found where others of the answer's order are not in it. */
const MORE = 4;

/** How the rows of a table are read now: by its types, and by whether deletions win. */
export interface Reading {
  readonly table: string;
  readonly types: Types;
  readonly deleteWins: boolean;
}

export const readingOf = (memory: Memory, name: string): Reading => ({
  table: fold(name),
  types: typesOf(memory.tables.get(fold(name)), memory.position.schemas, name),
  deleteWins: deleteWins(memory.position.schemas, name),
});

/** The columns that an app sees of a row, as canonical JSON; null if there is no row. */
export const seen = (reading: Reading, row: Row): ReadonlyMap<string, Json> | null =>
  view(asRead(row.state, reading.deleteWins));

/** A row of an answer, with its place in it. */
export interface Found {
  readonly key: string;
  readonly columns: ReadonlyMap<string, Json>;
  /** The places of its values in the columns of the order, and of its id. */
  readonly places: readonly string[];
  /** As the app is shown it, once it was. */
  shown?: QueriedRow;
}

/** A query of an app, made ready. */
export interface Asked {
  readonly reading: Reading;
  /** Columns, with the place that a row must have in each. */
  readonly where: ReadonlyMap<string, string>;
  readonly order: readonly { readonly column: string; readonly isDown: boolean }[];
  readonly limit: number;
}

/** Make a query ready; throws for a value that no column can have. */
export function asked(memory: Memory, query: Query): Asked {
  const reading = readingOf(memory, query.table);
  const terms = typeof query.order === "string" ? [query.order] : (query.order ?? []);
  const order = terms.map((term) => ({
    column: term.replace(/^-/, ""),
    isDown: term.startsWith("-"),
  }));
  const where = Object.entries(query.where ?? {}).map(([column, value]): [string, string] => {
    const type = reading.types[column];
    return [column, placeOf(type, encoded(column, type, value, false))];
  });
  return {
    reading,
    where: new Map(where),
    order: [...order, { column: ROW_ID, isDown: order.at(-1)?.isDown ?? false }],
    limit: query.limit ?? Infinity,
  };
}

/** A row as the answer has it; null if it is not in it. */
export function found(question: Asked, key: string, row: Row): Found | null {
  const { reading, where, order } = question;
  const columns = seen(reading, row);
  if (!columns) return null;
  const place = (column: string): string =>
    column === ROW_ID ? placeOfId(idOf(key)) : placeOf(reading.types[column], columns.get(column));
  for (const [column, wanted] of where) if (place(column) !== wanted) return null;
  return { key, columns, places: order.map(({ column }) => place(column)) };
}

/** The order of an answer. */
export const compared =
  ({ order }: Asked) =>
  (one: Found, other: Found): number => {
    for (const [at, { isDown }] of order.entries()) {
      const [left, right] = [one.places[at]!, other.places[at]!];
      if (left !== right) return left < right === isDown ? 1 : -1;
    }
    return 0;
  };

export const shown = ({ reading }: Asked, { key, columns }: Found): QueriedRow => ({
  ...cells(reading.types, columns),
  _row_id: idOf(key),
});

/** Where rows are read. */
export interface Source {
  readonly memory: Memory;
  /** All rows of a table, by their ids. */
  rows(table: string): Promise<[string, Row][]>;
  /** The rows of a part of an index, by their keys; where there are indexes. */
  find?(range: Range): Promise<[string, Row][]>;
}

/** The rows of a query, in their order. */
export async function answer(source: Source, question: Asked): Promise<Found[]> {
  const { table } = question.reading;
  const indexes = source.find ? (source.memory.tables.get(table)?.indexes ?? []) : [];
  const plan = planned(question, indexes);
  const rows = plan && (await indexed(source, question, plan));
  if (rows) return rows;
  const all = await source.rows(table);
  return inOrder(
    question,
    all.map(([rowId, row]) => [rowKey(table, rowId), row]),
  );
}

function inOrder(question: Asked, rows: readonly [string, Row][]): Found[] {
  const all = rows.map(([key, row]) => found(question, key, row)).filter((each) => each !== null);
  return all.sort(compared(question)).slice(0, question.limit);
}

/** The same by an index; null if it was declared otherwise meanwhile. */
async function indexed(source: Source, question: Asked, plan: Plan): Promise<Found[] | null> {
  const { index, prefix, isOrdered } = plan;
  const isDown = isOrdered && question.order[0]!.isDown;
  for (let limit = isOrdered ? question.limit : Infinity; ; limit *= MORE) {
    const rows = await source.find!({ prefix, isDown, limit });
    const now = source.memory.tables.get(question.reading.table)?.indexes ?? [];
    if (!now.some(({ id, isWhole }) => id === index.id && isWhole)) return null;
    const all = inOrder(question, rows);
    if (all.length >= question.limit || rows.length < limit) return all;
  }
}
