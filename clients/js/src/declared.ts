/** What types a table's columns have on this device: the app's declaration, or the gateway's schema. */

import { withIndexes } from "./indexes.js";
import { table } from "./rows.js";
import { fold, type Schemas, type Table, type Work } from "./state.js";
import { checkedType, type ColumnType, type Types } from "./values.js";

/** A table's columns by their names, each with its type. */
export type DeclaredColumns = Readonly<Record<string, ColumnType>>;

const NOTHING: Types = {};
const known = new WeakMap<Schemas, ReadonlyMap<string, Types>>();

/** The types of a table's columns: those that are declared, if any are; else those of its schema. */
export const typesOf = (of: Table | undefined, schemas: Schemas, name: string): Types =>
  of?.types ?? typesIn(schemas).get(fold(name)) ?? NOTHING;

function typesIn(schemas: Schemas): ReadonlyMap<string, Types> {
  let tables = known.get(schemas);
  if (!tables) {
    const pairs = schemas.tables.map(({ table: name, columns }): [string, Types] => [
      fold(name),
      Object.fromEntries((columns ?? []).map((column) => [column.name, column.type])),
    ]);
    known.set(schemas, (tables = new Map(pairs)));
  }
  return tables;
}

/** Fix the types of some columns of a table, and add indexes; what was declared of others stays. */
export function declare(
  work: Work,
  name: string,
  columns: DeclaredColumns,
  indexes: readonly (readonly string[])[],
): void {
  const types = Object.fromEntries(
    Object.entries(columns).map(([column, type]) => [column, checkedType(type)]),
  );
  const of = table(work, name, Object.keys(types), false);
  const typed = { ...of, types: { ...of.types, ...types } };
  work.putTable({ ...typed, indexes: withIndexes(typed, indexes) });
  if (Object.entries(types).some(([column, type]) => of.types?.[column] !== type)) {
    work.readOtherwise(fold(name));
  }
}

/** The indexes of a table that are not whole yet. */
export const unbuilt = (of: Table | undefined): readonly string[] =>
  (of?.indexes ?? []).filter((index) => !index.isWhole).map((index) => index.id);

/** Note that all rows are in some indexes. */
export function built(work: Work, name: string, ids: readonly string[]): void {
  const of = work.table(name);
  if (!of?.indexes) return;
  const indexes = of.indexes.map((index) =>
    ids.includes(index.id) ? { ...index, isWhole: true } : index,
  );
  work.putTable({ ...of, indexes });
}
