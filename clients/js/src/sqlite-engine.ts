/**
 * A copy of some tables in SQLite, which is only read by SQL.
 *
 * A table has `_row_id` and the columns of its rows, none with a type: a cell holds text, a number, 1
 * or 0 for true and false, bytes, or the JSON text of a list or an object.
 */

import type { Database, PreparedStatement as Statement } from "@sqlite.org/sqlite-wasm";

import type { QueriedRow } from "./client.js";
import { fault, LakeSyncError } from "./errors.js";

export type SqlCell = string | number | bigint | Uint8Array | null;

/** A table as an app asks for it. */
export interface SqlTable {
  /** Columns that statements may name before any row has them. */
  readonly columns?: readonly string[];
  /** Indexes, each of some columns. */
  readonly indexes?: readonly (readonly string[])[];
}

/** What has changed in a table since it was told last. */
export interface TableChange {
  readonly table: string;
  readonly rows: readonly QueriedRow[];
  /** The ids of rows that are gone. */
  readonly gone: readonly string[];
}

export interface SqlAnswer {
  readonly columns: readonly string[];
  readonly rows: readonly (readonly SqlCell[])[];
}

export const ANSWER_ROWS_MAX = 100_000;
const STATEMENTS_MAX = 200;
const ROW_ID = "_row_id";
/** What a statement that only reads begins with, behind comments. */
const READS = /^(?:\s|--[^\n]*(?:\n|$)|\/\*[^]*?\*\/)*(?:select|with|values)\b/i;
const NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

export class Engine {
  private readonly statements = new Map<string, Statement>();
  /** By table, its columns in small letters: SQLite takes names for the same that differ in case. */
  private readonly columns = new Map<string, Set<string>>();

  constructor(private readonly database: Database) {
    // A copy is made anew at each start: nothing of it has to survive.
    database.exec(
      "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY",
    );
  }

  /** Make a table. */
  make(table: string, { columns = [], indexes = [] }: SqlTable): void {
    checkName(table);
    this.database.exec(
      `CREATE TABLE ${quoted(table)} (${quoted(ROW_ID)} TEXT PRIMARY KEY) WITHOUT ROWID`,
    );
    this.columns.set(table, new Set([ROW_ID]));
    this.widen(table, columns);
    for (const [place, indexed] of indexes.entries()) {
      this.widen(table, indexed);
      const name = quoted(`lakesync ${table} ${place}`);
      this.database.exec(
        `CREATE INDEX ${name} ON ${quoted(table)} (${indexed.map(quoted).join()})`,
      );
    }
  }

  /** Follow what has changed: all of it, or nothing. */
  follow(changes: readonly TableChange[]): void {
    this.database.transaction(() => {
      for (const { table, rows, gone } of changes) {
        for (const id of gone) {
          this.run(`DELETE FROM ${quoted(table)} WHERE ${quoted(ROW_ID)} = ?`, [id]);
        }
        for (const row of rows) this.put(table, row);
      }
    });
  }

  /** Answer a statement that only reads. */
  select(sql: string, values: readonly SqlCell[]): SqlAnswer {
    if (!READS.test(sql)) throw invalid(ONLY_READS);
    let statement: Statement | null = null;
    try {
      statement = this.database.prepare(sql);
      if (!isReadOnly(statement)) throw invalid(ONLY_READS);
      if (values.length) statement.bind([...values]);
      const columns = statement.getColumnNames();
      const rows: SqlCell[][] = [];
      while (statement.step()) {
        if (rows.length === ANSWER_ROWS_MAX) {
          throw invalid(`an answer has at most ${ANSWER_ROWS_MAX} rows: add a LIMIT`);
        }
        rows.push(statement.get([]) as SqlCell[]);
      }
      return { columns, rows };
    } catch (error) {
      if (error instanceof LakeSyncError) throw error;
      throw invalid(
        `SQLite refuses this: ${error instanceof Error ? error.message : String(error)}`,
      );
    } finally {
      statement?.finalize();
    }
  }

  close(): void {
    for (const statement of this.statements.values()) statement.finalize();
    this.statements.clear();
    this.database.close();
  }

  private put(table: string, row: QueriedRow): void {
    const names = Object.keys(row);
    this.widen(table, names);
    this.run(
      `INSERT OR REPLACE INTO ${quoted(table)} (${names.map(quoted).join()})
       VALUES (${names.map(() => "?").join()})`,
      names.map((name) => cellOf(row[name])),
    );
  }

  private widen(table: string, names: readonly string[]): void {
    const columns = this.columns.get(table);
    if (!columns) throw invalid(`the table ${table} is not one of those that were opened`);
    for (const name of names) {
      if (columns.has(name.toLowerCase())) continue;
      this.database.exec(`ALTER TABLE ${quoted(table)} ADD COLUMN ${quoted(name)}`);
      columns.add(name.toLowerCase());
    }
  }

  private run(sql: string, values: readonly SqlCell[]): void {
    const statement = this.statements.get(sql) ?? this.database.prepare(sql);
    if (!this.statements.has(sql)) {
      if (this.statements.size >= STATEMENTS_MAX) {
        const [oldest, old] = this.statements.entries().next().value!;
        this.statements.delete(oldest);
        old.finalize();
      }
      this.statements.set(sql, statement);
    }
    try {
      statement.bind([...values]);
      statement.step();
    } finally {
      statement.reset();
    }
  }
}

/** Its types leave it out. */
const isReadOnly = (statement: Statement): boolean =>
  (statement as unknown as { isReadOnly(): boolean }).isReadOnly();

const ONLY_READS = "a statement is SELECT, WITH or VALUES: edit by insert, update and delete";

const invalid = (message: string): LakeSyncError => fault("VALIDATION_ERROR", message, "sql");

const quoted = (name: string): string => `"${name.replaceAll('"', '""')}"`;

function checkName(table: string): void {
  if (!NAME.test(table) || /^sqlite_/i.test(table)) {
    throw fault("VALIDATION_ERROR", `SQLite cannot have a table of the name ${table}`, "tables");
  }
}

function cellOf(value: unknown): SqlCell {
  if (typeof value === "boolean") return value ? 1 : 0;
  if (typeof value === "object" && value !== null && !(value instanceof Uint8Array)) {
    return JSON.stringify(value);
  }
  return (value as SqlCell | undefined) ?? null;
}
