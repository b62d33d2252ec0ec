/**
 * Devices of a simulation: clients whose network, clock and death are another process's to decide.
 *
 * Each line of standard input is a request, and each of standard output its answer; one at a time.
 *
 *     begin                       forget all devices and their databases
 *     open      name, options     a process opens a database, or a memory that ends with it
 *     close, left                 the process ends; the edits that its database still holds
 *     call      method, given     an operation of the client, to its end
 *     sync      mode              until it asks the gateway for something, or ends
 *     answer    status, body      to what it asked; without a status nothing came back
 *     hear      page              a broadcast
 *     hurry                       the app is opened, or there is a network again
 *     position, outbox, rows, listed, schemas    what is stored, and what a query shows
 *
 * Each names its `device`, the device's `ms`, and how many `points` it still lives: before and after
 * each transaction that writes. The answer of one that dies there is `died`. Whatever a dead process
 * was about to do does not happen.
 */

import { createInterface } from "node:readline";
import { isDeepStrictEqual } from "node:util";

import "fake-indexeddb/auto";
import { IDBFactory } from "fake-indexeddb";

import { Client, type QueriedRow, type Result } from "../src/index.js";
import { LakeSyncError } from "../src/errors.js";
import { deltaId, type Delta, type State } from "../src/merge.js";
import { readPage } from "../src/messages.js";
import type { Owner } from "../src/owner.js";
import { fold, known, rowKey, type Entry, type Row } from "../src/state.js";
import type { Storage } from "../src/storage.js";

type Fields = Record<string, any>;

/** For so many turns of the event loop it is waited that a watch is told. */
const TURNS_MAX = 200;

/** What is behind a client's API. */
interface Inside {
  readonly storage: Storage;
  readonly owner: Owner;
}

/** One process with its client. */
class Life {
  ms = 0;
  points = Infinity;
  isOver = false;
  client!: Client;
  /** The rows of each table that it watches, as it was told last. */
  readonly watched = new Map<string, readonly QueriedRow[]>();
  /** Where it stops: at a request, with a result, at its end. */
  private stopped: (stop: Fields) => void = () => undefined;
  private answered: ((answer: Fields) => void) | null = null;

  /** Let it do something until it asks, is done, or dies. */
  until(body: () => Promise<unknown>): Promise<Fields> {
    return new Promise((resolve, reject) => {
      this.stopped = resolve;
      body().then(
        (value) => resolve({ value }),
        (error: unknown) => (this.isOver ? undefined : reject(error as Error)),
      );
    });
  }

  /** A sync goes on in the background of later calls: what it stops at is of the latest. */
  sync(mode: "full" | "push" | "pull"): Promise<Fields> {
    return new Promise((resolve) => {
      this.stopped = resolve;
      this.client.sync(mode).then(
        (result) => this.stopped(shownResult(result)),
        (error: unknown) => this.stopped({ bug: stackOf(error) }),
      );
    });
  }

  answer(answer: Fields): Promise<Fields> {
    return new Promise((resolve) => {
      this.stopped = resolve;
      this.answered!(answer);
    });
  }

  readonly fetch = (url: RequestInfo | URL, init?: RequestInit): Promise<Response> =>
    new Promise((resolve, reject) => {
      if (this.isOver) return;
      this.answered = ({ status, body }) => {
        this.answered = null;
        if (status === undefined) reject(new TypeError("nothing came back"));
        else resolve(new Response(body as string, { status: status as number }));
      };
      this.stopped({ asked: { url, method: init?.method, body: init?.body ?? null } });
    });

  /** Pass a point at which it may die. */
  pass(where: string): void {
    if (this.isOver || this.points > 0) {
      this.points -= 1;
      return;
    }
    this.isOver = true;
    this.stopped({ died: where });
  }

  get inside(): Inside {
    return this.client as unknown as Inside;
  }
}

// --- processes that die ---------------------------------------------------------------------------

const lives = new Map<number, Life>();
/** The process that has a connection open, and of each database the last that opened it. */
const owners = new WeakMap<IDBDatabase, Life>();
const openers = new Map<string, Life>();

// A browser ends a transaction whose page is killed; none begins afterwards.
const begin = Reflect.get(IDBDatabase.prototype, "transaction") as (
  this: IDBDatabase,
  ...given: Parameters<IDBDatabase["transaction"]>
) => IDBTransaction;
IDBDatabase.prototype.transaction = function (this: IDBDatabase, stores, mode, options) {
  const life = owners.get(this) ?? openers.get(this.name)!;
  owners.set(this, life);
  if (mode === "readwrite") life.pass("before a transaction");
  if (life.isOver) throw new DOMException("the process is dead", "AbortError");
  const begun = begin.call(this, stores, mode, options);
  if (mode === "readwrite") begun.addEventListener("complete", () => life.pass("behind one"));
  return begun;
};

async function opened(device: number, fields: Fields): Promise<Fields> {
  const life = new Life();
  life.ms = fields.ms as number;
  lives.set(device, life);
  const { name, ...options } = fields.options as { name: string };
  openers.set(name, life);
  const result = await Client.open({
    ...(options as unknown as Parameters<typeof Client.open>[0]),
    name,
    url: "https://simulated",
    gateway: "g1",
    token: "token",
    fetch: life.fetch,
    now: () => life.ms,
  });
  if (!result.ok) return shownResult(result);
  life.client = result.value;
  for (const table of fields.tables as string[]) {
    life.client.watch({ table }, (rows) => life.watched.set(fold(table), rows));
  }
  return { value: { isDurable: life.client.status.isDurable } };
}

function close(life: Life): Fields {
  life.isOver = true;
  life.client.close();
  return {};
}

/** The edits that go with a device: in a database that nobody has open, or in its memory. */
async function left(device: number, name: string): Promise<Fields> {
  const last = lives.get(device)?.inside.storage;
  if (last?.isDurable === false) return { value: outbox(last) };
  const reader = new Life();
  openers.set(name, reader);
  const result = await Client.open({
    name, url: "", gateway: "", clientId: "reader", token: "t", now: () => 0,
  }); // prettier-ignore
  if (!result.ok) return shownResult(result);
  reader.client = result.value;
  const value = outbox(reader.inside.storage);
  close(reader);
  return { value };
}

// --- requests -------------------------------------------------------------------------------------

async function answered(request: Fields): Promise<Fields> {
  const device = request.device as number;
  if (request.do === "begin") {
    lives.clear();
    openers.clear();
    globalThis.indexedDB = new IDBFactory();
    return {};
  }
  if (request.do === "open") return opened(device, request);
  if (request.do === "left") return left(device, request.name as string);
  const life = lives.get(device)!;
  life.ms = request.ms as number;
  life.points = (request.points as number | null) ?? Infinity;
  const points = life.points;
  const answer = await done(life, request);
  return { ...answer, points: points - life.points };
}

function done(life: Life, request: Fields): Promise<Fields> | Fields {
  const { storage, owner } = life.inside;
  switch (request.do) {
    case "close":
      return close(life);
    case "sync":
      return life.sync(request.mode as "full");
    case "answer":
      return life.answer(request);
    case "hurry":
      owner.hurry();
      return {};
    case "call":
      return life.until(() => call(life, request.method as string, request.given as unknown[]));
    case "hear": {
      const page = { ...request.page, first: request.first, previous: request.previous };
      return life.until(() => owner.apply(readPage(page)));
    }
    case "position": {
      const { cursor, snapshot, mode, epoch, scope, schemasOf } = storage.memory.position;
      return { value: { cursor, snapshot, mode, epoch, scope, schemasOf } };
    }
    case "schemas":
      return { value: storage.memory.position.schemas.tables.map(({ table }) => table) };
    case "outbox":
      return { value: outbox(storage) };
    case "row":
      return life.until(() => row(storage, request.table as string, request.rowId as string));
    case "rows":
      return life.until(() => rows(storage));
    case "listed":
      return life.until(() => listed(life, request));
  }
  throw new Error(`no such request: ${request.do}`);
}

async function call(life: Life, method: string, given: unknown[]): Promise<unknown> {
  const { client } = life;
  switch (method) {
    case "transaction":
      return shownResult(
        await client.transaction((edits) => {
          for (const [name, ...rest] of given[0] as [string, ...unknown[]][])
            (edits as any)[name](...rest);
        }),
      );
    case "conflicts":
      return client.conflicts();
    case "quarantined":
      return client.quarantined().map((entry) => entry.deltaId);
  }
  return shownResult((await (client as any)[method](...given)) as Result<unknown>);
}

// --- what is stored and shown ---------------------------------------------------------------------

const shownResult = (result: Result<unknown>): Fields => {
  if (result.ok) return { value: shownValue(result.value) };
  const { code, message, field, retryAfterS, isForeign } = result.error;
  return { error: { code, message, field, retryAfterS, isForeign } };
};

const shownValue = (value: unknown): unknown =>
  Array.isArray(value) ? value.map(shownValue) : isDelta(value) ? shownDelta(value) : value;

const isDelta = (value: unknown): value is Delta =>
  typeof value === "object" && value !== null && "hlc" in value && "columns" in value;

const shownDelta = (delta: Delta): Fields => ({ ...delta, deltaId: deltaId(delta) });

const outbox = (storage: Storage): Fields[] =>
  [...storage.memory.outbox.values()].map(({ delta, ...entry }: Entry) => ({
    ...entry,
    delta: shownDelta(delta),
  }));

const shownState = ({ alive, deleted, columns }: State): unknown[] => [
  alive,
  deleted,
  Object.fromEntries(columns),
];

const shownRow = (of: Row): Fields => ({
  state: shownState(of.state),
  known: shownState(known(of)),
});

async function row(storage: Storage, table: string, rowId: string): Promise<Fields | null> {
  const found = await storage.row(rowKey(table, rowId));
  return found ? shownRow(found) : null;
}

async function rows(storage: Storage): Promise<Fields[]> {
  const all: Fields[] = [];
  for (const [key, { name }] of storage.memory.tables) {
    for (const [rowId, of] of await storage.rows(key)) {
      all.push({ table: name, rowId, ...shownRow(of) });
    }
  }
  return all;
}

/** A row as a query shows it, and as who watches the table was told: null if there is no table. */
async function listed({ client, inside, watched }: Life, { table, rowId }: Fields) {
  if (!inside.storage.memory.tables.has(fold(table as string))) return null;
  const result = await client.query({ table: table as string });
  if (!result.ok) throw result.error;
  const queried = result.value.filter((each) => each._row_id === rowId);
  const told = () => watched.get(fold(table as string))?.filter((each) => each._row_id === rowId);
  // It is told soon, which is not at once.
  for (let turn = 0; turn < TURNS_MAX && !isDeepStrictEqual(told(), queried); turn += 1) {
    await new Promise(setImmediate);
  }
  return { queried, watched: told() ?? null };
}

// --- lines ----------------------------------------------------------------------------------------

const stackOf = (error: unknown): string =>
  error instanceof Error ? (error.stack ?? error.message) : String(error);

/** What JSON cannot say. */
function replaced(_: string, value: unknown): unknown {
  if (typeof value === "bigint") return { $integer: String(value) };
  return value instanceof Uint8Array ? { $bytes: Buffer.from(value).toString("base64") } : value;
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer: Fields;
  try {
    answer = await answered(JSON.parse(line) as Fields);
  } catch (error) {
    answer = {
      bug: error instanceof LakeSyncError ? `${error.code}: ${stackOf(error)}` : stackOf(error),
    };
  }
  process.stdout.write(`${JSON.stringify(answer, replaced)}\n`);
}
