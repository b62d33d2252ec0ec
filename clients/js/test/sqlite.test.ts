/** SQL over a client's tables, by the official sqlite-wasm in memory. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import "fake-indexeddb/auto";
import initialise from "@sqlite.org/sqlite-wasm";

import { Client } from "../src/index.js";
import { serve } from "../src/sqlite-port.js";
import { Sql, type SqlRow, type SqlTable } from "../src/sqlite.js";
import { valueOf } from "./results.js";

const sqlite = await initialise();

/** A client without a gateway, and SQL over its tables. */
async function opened(
  context: TestContext,
  tables: Record<string, SqlTable> = {
    todos: { columns: ["done"], indexes: [["list", "n"]] },
    lists: {},
  },
): Promise<{ client: Client; sql: Sql }> {
  const client = await valueOf(
    Client.open({
      url: "http://localhost",
      gateway: "g1",
      clientId: `c${Math.random()}`,
      token: "t",
      inMemory: true,
    }),
  );
  const { port1, port2 } = new MessageChannel();
  serve(port1, async () => ({
    database: new sqlite.oo1.DB(":memory:"),
    isOnDisk: false,
  }));
  const sql = await valueOf(Sql.open(client, { tables, worker: port2 }));
  context.after(() => {
    sql.close();
    client.close();
    setImmediate(() => port1.close());
  });
  return { client, sql };
}

test("a query sees every edit that was answered before", async (context) => {
  const { client, sql } = await opened(context);
  for (let n = 0; n < 50; n += 1) {
    await valueOf(client.insert("todos", `r${n % 7}`, { n, done: n % 2 === 0, list: "l1" }));
    const [row] = await valueOf(sql.query("SELECT max(n) AS n, count(*) AS rows FROM todos"));
    assert.deepEqual(row, { n, rows: Math.min(n + 1, 7) });
  }
  await valueOf(client.delete("todos", "r0"));
  assert.deepEqual(await valueOf(sql.query("SELECT count(*) AS rows FROM todos")), [{ rows: 6 }]);
});

test("tables are joined, and values are cells", async (context) => {
  const { client, sql } = await opened(context);
  await valueOf(client.declare("todos", { size: "integer", photo: "bytes" }));
  const photo = new Uint8Array([0, 255]);
  await valueOf(client.insert("lists", "l1", { title: 'it\'s "quoted" \u{1f600}\u0000' }));
  await valueOf(
    client.insert("todos", "r1", {
      list: "l1", done: true, tags: ["a", { k: 1 }], size: 2n ** 62n, photo, empty: null,
    }), // prettier-ignore
  );

  const rows = await valueOf(
    sql.query(
      `SELECT l.title, t.done, t.tags, t.size, t.photo, t.empty
       FROM todos AS t JOIN lists AS l ON l._row_id = t.list WHERE l.title = ?`,
      ['it\'s "quoted" \u{1f600}\u0000'],
    ),
  );

  assert.deepEqual(rows, [
    {
      title: 'it\'s "quoted" \u{1f600}\u0000', done: 1, tags: '["a",{"k":1}]', size: 2n ** 62n,
      photo, empty: null,
    }, // prettier-ignore
  ]);
});

test("a declared index is used", async (context) => {
  const { sql } = await opened(context);
  const plan = await valueOf(
    sql.query("WITH x AS (SELECT 1) SELECT * FROM todos WHERE list = 'l1' ORDER BY n"),
  );
  assert.deepEqual(plan, []);
  const [step] = await valueOf(
    sql.query("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'todos' AND name LIKE 'lakesync%'"), // prettier-ignore
  );
  assert.deepEqual(step, { name: "lakesync todos 0" });
});

for (const statement of [
  "DELETE FROM todos",
  "-- SELECT\nDELETE FROM todos",
  "WITH x AS (SELECT 1) DELETE FROM todos",
  "PRAGMA writable_schema = 1",
  "/* SELECT */ ATTACH 'x' AS y",
  "SELECT * FROM nowhere",
  "SELECT ?",
  "",
  "SELECT",
]) {
  test(`it refuses ${JSON.stringify(statement)}`, async (context) => {
    const { client, sql } = await opened(context);
    await valueOf(client.insert("todos", "r1", { n: 1 }));
    const values = statement === "SELECT ?" ? [1, 2] : [];
    const refused = await sql.query(statement, values);
    assert.equal(!refused.ok && refused.error.code, "VALIDATION_ERROR");
    assert.deepEqual(await valueOf(sql.query("SELECT n FROM todos")), [{ n: 1 }]);
  });
}

test("an answer of too many rows is refused", async (context) => {
  const { sql } = await opened(context);
  const counted = (rows: number): string =>
    `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${rows}) SELECT i FROM n`;
  assert.equal((await valueOf(sql.query(counted(100_000)))).length, 100_000);
  const refused = await sql.query(counted(100_001));
  assert.match(refused.ok ? "" : refused.error.message, /at most 100000 rows/);
});

test("columns that differ in case are one, and rows keep their ids", async (context) => {
  const { client, sql } = await opened(context);
  await valueOf(client.insert("todos", "r1", { Title: "a" }));
  await valueOf(client.insert("todos", "R1", { Title: "b" }));
  assert.deepEqual(await valueOf(sql.query("SELECT _row_id, title FROM todos ORDER BY 1")), [
    { _row_id: "R1", Title: "b" },
    { _row_id: "r1", Title: "a" },
  ]);
});

test("a watch is told each other answer once, and not after its end", async (context) => {
  const { client, sql } = await opened(context);
  const told: (readonly SqlRow[])[] = [];
  const end = sql.watch("SELECT count(*) AS rows FROM todos WHERE done", [], (rows) =>
    told.push(rows),
  );
  await until(() => told.length === 1);
  await valueOf(client.insert("todos", "r1", { done: true }));
  await until(() => told.length === 2);
  await valueOf(client.insert("todos", "r2", { done: false }));
  await valueOf(client.insert("todos", "r3", { done: true }));
  await until(() => told.length === 3);
  end();
  await valueOf(client.insert("todos", "r4", { done: true }));
  await sql.query("SELECT 1");
  await sleep(10);
  assert.deepEqual(told, [[{ rows: 0 }], [{ rows: 1 }], [{ rows: 2 }]]);
});

test("what is asked of a closed copy is refused", async (context) => {
  const { sql } = await opened(context);
  const open = sql.query("SELECT 1");
  sql.close();
  assert.deepEqual(
    [await open, await sql.query("SELECT 1")].map((each) => each.ok || each.error.code),
    ["CLOSED", "CLOSED"],
  );
});

test("a table that SQLite cannot have is refused", async () => {
  const client = await valueOf(
    Client.open({
      url: "http://localhost",
      gateway: "g",
      clientId: "c",
      token: "t",
      inMemory: true,
    }),
  );
  const { port1, port2 } = new MessageChannel();
  serve(port1, async () => ({
    database: new sqlite.oo1.DB(":memory:"), isOnDisk: false,
  })); // prettier-ignore
  const refused = await Sql.open(client, {
    tables: { sqlite_master: {} },
    worker: port2,
  });
  assert.equal(!refused.ok && refused.error.code, "VALIDATION_ERROR");
  port1.close();
  client.close();
});

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await sleep(1);
}
