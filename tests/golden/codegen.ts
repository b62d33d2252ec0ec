/**
 * Rows of the tables of the gateway acme.
 *
 * Made by `lakesync codegen --typescript`: make it again when a schema grows; edit nothing here.
 */

/** A row of my_todos. */
export interface MyTodos {
  "title"?: string | null;
  "done"?: boolean | null;
  "n"?: bigint | null;
  "weight"?: number | null;
  "due"?: string | null;
  "at"?: string | null;
  "price"?: string | null;
  "photo"?: Uint8Array | null;
  "tags"?: unknown;
  "str"?: string | null;
  "date"?: string | null;
  "class"?: string | null;
}

/** The rows of each table. */
export interface Tables {
  "my_todos": MyTodos;
}

/** For `client.declare(table, TABLES[table])`. */
export const TABLES = {
  ["my_todos"]: {
    ["title"]: "string",
    ["done"]: "boolean",
    ["n"]: "integer",
    ["weight"]: "number",
    ["due"]: "date",
    ["at"]: "timestamp",
    ["price"]: "decimal(9,2)",
    ["photo"]: "bytes",
    ["tags"]: "json",
    ["str"]: "string",
    ["date"]: "date",
    ["class"]: "string",
  },
} as const;
