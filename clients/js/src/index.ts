/** A client of a LakeSync gateway for browsers: offline first, nothing is lost. */

export {
  Client,
  type Columns,
  type Options,
  type OutboxEntry,
  type QueriedRow,
  type Query,
  type Result,
  type RowValues,
  type ShownConflict as Conflict,
  type Status,
  type Transaction,
} from "./client.js";
export { createClient, type CreateClientConfig } from "./create.js";
export type { Keep } from "./edits.js";
export { LakeSyncError } from "./errors.js";
export type { Value } from "./json.js";
export type { DeclaredColumns } from "./declared.js";
export type { Mode } from "./sync.js";
export { typed, type TypedClient, type TypedQuery } from "./typed.js";
export type { Cell, ColumnType } from "./values.js";
