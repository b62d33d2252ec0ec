/** What tests do with results, and with databases of the first release. */

import assert from "node:assert/strict";

import type { LakeSyncError, Result } from "../src/index.js";

/** The value of a result that must be one; throws its error. */
export async function valueOf<T>(asked: Promise<Result<T>> | Result<T>): Promise<T> {
  const result = await asked;
  if (!result.ok) throw result.error;
  return result.value;
}

/** The error of a result that must be one. */
export async function errorOf(asked: Promise<Result<unknown>>): Promise<LakeSyncError> {
  const result = await asked;
  assert.ok(!result.ok);
  return result.error;
}

/** Make the stores that the first release's databases have. */
export function makeFirstLayout(database: IDBDatabase): void {
  for (const store of ["position", "tables", "outbox", "journal", "conflicts"]) {
    database.createObjectStore(store);
  }
  const rows = database.createObjectStore("rows");
  rows.createIndex("marks", "marks", { multiEntry: true });
  rows.createIndex("age", ["table", "generation"]);
}
