/**
 * Declared indexes: the places of a row's values, by which IndexedDB finds and orders rows.
 *
 * A row is stored with one entry for each index of its table: the index's id, and the place of its
 * value in each column (`places.ts`). An index that was declared when rows were there is built row by
 * row, and used once it is whole.
 */

import { fault } from "./errors.js";
import { view } from "./merge.js";
import { placeOf } from "./places.js";
import type { Asked } from "./query.js";
import { fold, type Index, type Row, type Table } from "./state.js";

export type Entry = readonly string[];

/** What finds rows: those whose entries begin with a prefix, in the order of the index. */
export interface Range {
  readonly prefix: Entry;
  readonly isDown: boolean;
  readonly limit: number;
}

/** The entries of a row in its table's indexes. */
export function entriesOf({ indexes = [], types = {} }: Partial<Table>, row: Row): Entry[] {
  const columns = indexes.length ? view(row.state) : null;
  if (!columns) return [];
  const place = (column: string): string => placeOf(types[column], columns.get(column));
  return indexes.map((index) => [index.id, ...index.columns.map(place)]);
}

/** A table's indexes with some more; those that were there stay as they are, if their types do. */
export function withIndexes(of: Table, more: readonly (readonly string[])[]): Index[] {
  const { types = {}, indexes = [] } = of;
  const wanted = [...indexes.map((index) => index.columns), ...more];
  const made = wanted.map((columns): Index => {
    const missing = columns.find((column) => !Object.hasOwn(types, column));
    if (!columns.length || missing !== undefined) {
      throw fault(
        "VALIDATION_ERROR",
        `an index of ${of.name} names ${missing ?? "no column"}: declare its columns first`,
        "indexes",
      );
    }
    const id = [fold(of.name), ...columns.map((name) => `${fold(name)} ${types[name]!}`)].join(
      "\n",
    );
    return { id, columns, isWhole: indexes.some((index) => index.id === id && index.isWhole) };
  });
  return [...new Map(made.map((index) => [index.id, index])).values()];
}

/** The index that a query is answered by, and which part of it. */
export interface Plan {
  readonly index: Index;
  readonly prefix: Entry;
  /** Whether the rows are found in the query's order. */
  readonly isOrdered: boolean;
}

/** Choose the index that narrows a query most; null if none does. */
export function planned({ where, order, limit }: Asked, indexes: readonly Index[]): Plan | null {
  let best: Plan | null = null;
  for (const index of indexes) {
    if (!index.isWhole) continue;
    const { columns } = index;
    const isFree = columns.findIndex((column) => !where.has(column));
    const fixed = isFree < 0 ? columns.length : isFree;
    const places = columns.slice(0, fixed).map((column) => where.get(column)!);
    // Behind the last column follow the ids, so the order has to end where the index does.
    const terms = [...columns.slice(fixed), "_row_id"];
    const isOrdered =
      limit !== Infinity &&
      terms.length === order.length &&
      order.every(({ column, isDown }, at) => column === terms[at] && isDown === order[0]!.isDown);
    const isBetter =
      !best ||
      places.length + 1 > best.prefix.length ||
      (places.length + 1 === best.prefix.length && isOrdered);
    if ((fixed || isOrdered) && isBetter)
      best = { index, prefix: [index.id, ...places], isOrdered };
  }
  return best;
}
