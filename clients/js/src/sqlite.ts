/**
 * `@lakesync/client/sqlite`: SQL over a client's tables, for queries that `Query` does not have.
 *
 * SQLite holds a copy of the tables that an app names, in a worker, so that no query blocks the page:
 * on the browser's private file system (OPFS) in one tab, in memory in others. The copy is made at each
 * start, and follows the client; the client's own database stays the only one that must last.
 */

import type { Client, QueriedRow, Result } from "./client.js";
import { fault, LakeSyncError } from "./errors.js";
import type { SqlCell, SqlTable, TableChange } from "./sqlite-engine.js";
import type { Answers, Message, Port } from "./sqlite-port.js";

export type { SqlCell, SqlTable };
export type SqlRow = Readonly<Record<string, SqlCell>>;

export interface SqlOptions {
  /** The tables that SQL sees: `{ todos: { columns: ["done"], indexes: [["list", "n"]] }, lists: {} }`. */
  readonly tables: Readonly<Record<string, SqlTable>>;
  /** The worker, `@lakesync/client/sqlite-worker`, if a bundler does not find it by itself. */
  readonly worker?: Worker | Port;
}

/** SQL over a client's tables. */
export class Sql {
  private readonly asked = new Map<number, (answer: Message["answer"]) => void>();
  private readonly ends: (() => void)[] = [];
  private readonly listeners = new Set<() => void>();
  private requests = 0;
  private isClosed = false;
  /** Whether the copy is on the private file system, not in memory. */
  isOnDisk = false;

  private constructor(private readonly port: Worker | Port) {
    port.onmessage = ({ data }: MessageEvent<Message>) => {
      this.asked.get(data.number)?.(data.answer);
      this.asked.delete(data.number);
    };
  }

  /** Copy tables of a client, and follow it until `close`. */
  static async open(client: Client, { tables, worker }: SqlOptions): Promise<Result<Sql>> {
    const sql = new Sql(
      worker ?? new Worker(new URL("./sqlite-worker.js", import.meta.url), { type: "module" }),
    );
    return attempt(async () => {
      try {
        sql.isOnDisk = await sql.ask("open", tables);
        await Promise.all(Object.keys(tables).map((table) => sql.copy(client, table)));
        return sql;
      } catch (error) {
        sql.close();
        throw error;
      }
    });
  }

  /**
   * The rows of a `SELECT`; it sees every edit that this tab was answered before.
   *
   * Booleans are 1 and 0, lists and objects are JSON text; an answer has at most 100,000 rows.
   */
  query(sql: string, values: readonly SqlCell[] = []): Promise<Result<readonly SqlRow[]>> {
    return attempt(async () => {
      await Promise.resolve(); // what was told of an edit is sent before
      const { columns, rows } = await this.ask("select", sql, values);
      return rows.map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]!])));
    });
  }

  /** Be told the rows of a `SELECT`, now and after each change; call what it returns to end it. */
  watch(
    sql: string,
    values: readonly SqlCell[],
    onRows: (rows: readonly SqlRow[]) => void,
    onError: (error: LakeSyncError) => void = () => undefined,
  ): () => void {
    let isOver = false;
    let isReading = false;
    let isStale = false;
    let last = "";
    const read = async (): Promise<void> => {
      isStale = isReading;
      if (isReading) return;
      isReading = true;
      const answer = await this.query(sql, values);
      isReading = false;
      if (isOver) return;
      if (!answer.ok) onError(answer.error);
      else {
        const text = JSON.stringify(answer.value, (_, cell: unknown) =>
          typeof cell === "bigint" ? `${cell}n` : cell,
        );
        if (text !== last) onRows(answer.value);
        last = text;
      }
      if (isStale) void read();
    };
    const listener = () => void read();
    this.listeners.add(listener);
    listener();
    return () => {
      isOver = true;
      this.listeners.delete(listener);
    };
  }

  /** End the copy; the client stays open. */
  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    for (const end of this.ends) end();
    const error = isClosed();
    for (const settle of this.asked.values()) settle({ error });
    this.asked.clear();
    const ended = this.ask("close").catch(() => undefined);
    void ended.then(() => "terminate" in this.port && this.port.terminate());
  }

  /** Copy a table, and follow it; returns once it is there. */
  private copy(client: Client, table: string): Promise<void> {
    let before: ReadonlyMap<string, QueriedRow> = new Map();
    return new Promise((resolve, reject) => {
      const end = client.watch(
        { table },
        (rows) => {
          const now = new Map(rows.map((row) => [row._row_id, row]));
          // A row that stays as it was is the same object.
          const change: TableChange = {
            table,
            rows: rows.filter((row) => before.get(row._row_id) !== row),
            gone: [...before.keys()].filter((id) => !now.has(id)),
          };
          before = now;
          this.ask("follow", [change]).then(() => {
            resolve();
            for (const listener of this.listeners) listener();
          }, reject);
        },
        reject,
      );
      this.ends.push(end);
    });
  }

  private ask<Name extends keyof Answers>(
    ask: Name,
    ...values: Parameters<Answers[Name]>
  ): Promise<Awaited<ReturnType<Answers[Name]>>> {
    const number = (this.requests += 1);
    if (this.isClosed && ask !== "close") return Promise.reject(isClosed());
    return new Promise((resolve, reject) => {
      this.asked.set(number, (answer) => {
        if ("error" in answer) {
          const { code, message, field } = answer.error;
          reject(new LakeSyncError(code, message, field ?? null));
        } else {
          resolve(answer.value as Awaited<ReturnType<Answers[Name]>>);
        }
      });
      this.port.postMessage({ number, ask, values });
    });
  }
}

const isClosed = (): LakeSyncError => fault("CLOSED", "the copy is closed: open it again");

async function attempt<T>(body: () => Promise<T>): Promise<Result<T>> {
  try {
    return { ok: true, value: await body() };
  } catch (error) {
    if (error instanceof LakeSyncError) return { ok: false, error };
    return { ok: false, error: fault("STORAGE_FAILED", String(error)) };
  }
}
