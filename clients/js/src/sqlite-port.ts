/** What a page asks the worker that has SQLite, and how it is answered. */

import type { Database } from "@sqlite.org/sqlite-wasm";

import { fault, LakeSyncError } from "./errors.js";
import {
  Engine,
  type SqlAnswer,
  type SqlCell,
  type SqlTable,
  type TableChange,
} from "./sqlite-engine.js";

/** A worker, or one end of a channel. */
export interface Port {
  postMessage(message: unknown): void;
  onmessage: ((event: MessageEvent) => void) | null;
}

export interface Answers {
  /** Make tables; whether the copy is on disk. */
  readonly open: (tables: Readonly<Record<string, SqlTable>>) => Promise<boolean>;
  readonly follow: (changes: readonly TableChange[]) => void;
  readonly select: (sql: string, values: readonly SqlCell[]) => SqlAnswer;
  readonly close: () => void;
}

interface Failure {
  readonly code: string;
  readonly message: string;
  readonly field?: string | null;
}

export interface Message {
  readonly number: number;
  readonly answer: { readonly value: unknown } | { readonly error: Failure };
}

interface Request {
  readonly number: number;
  readonly ask: keyof Answers;
  readonly values: readonly unknown[];
}

/** Answer a page's requests in their order. `open` gives a database, and whether it is on disk. */
export function serve(
  port: Port,
  open: () => Promise<{ readonly database: Database; readonly isOnDisk: boolean }>,
): void {
  let engine: Engine | null = null;
  const opened = (): Engine => {
    if (!engine) throw fault("CLOSED", "the copy is closed: open it again");
    return engine;
  };
  const answers: Answers = {
    async open(tables) {
      const { database, isOnDisk } = await open();
      engine = new Engine(database);
      for (const [name, table] of Object.entries(tables)) engine.make(name, table);
      return isOnDisk;
    },
    follow: (changes) => opened().follow(changes),
    select: (sql, values) => opened().select(sql, values),
    close() {
      engine?.close();
      engine = null;
    },
  };
  let turn: Promise<unknown> = Promise.resolve();
  port.onmessage = ({ data }: MessageEvent<Request>) => {
    turn = turn.then(async () => {
      port.postMessage({ number: data.number, answer: await answered(answers, data) });
    });
  };
}

async function answered(answers: Answers, { ask, values }: Request): Promise<Message["answer"]> {
  try {
    const answer = answers[ask] as (...values: readonly unknown[]) => unknown;
    return { value: await answer(...values) };
  } catch (error) {
    if (!(error instanceof LakeSyncError)) {
      const message = error instanceof Error ? error.message : String(error);
      return { error: { code: "STORAGE_FAILED", message: `SQLite failed: ${message}` } };
    }
    const { code, message, field } = error;
    return { error: { code, message, field } };
  }
}
