/** Declared indexes: a query gives the same with them, and reads only the rows that it shows. */

import assert from "node:assert/strict";
import { test } from "node:test";

import "fake-indexeddb/auto";

import { Client, type Query } from "../src/index.js";
import { makeFirstLayout, valueOf } from "./results.js";

const COLUMNS = { n: "integer", done: "boolean", at: "timestamp", title: "string" } as const;
const INDEXES = [["done"], ["done", "n"], ["n"], ["at", "title"], ["title", "done", "at"]];
let number = 0;

async function opened(name = `indexes ${number++}`): Promise<Client> {
  const address = { url: "https://gateway.example", gateway: "g1", clientId: "c1", token: "t" };
  return valueOf(Client.open({ ...address, name }));
}

/** A generator of numbers that is the same in each run. */
function chance(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const VALUES = {
  n: [null, 1n, 2, 3, 10n, -5n, 2n ** 62n, undefined],
  done: [true, false, null, undefined],
  at: ["2026-05-17T08:00Z", "2026-05-17T10:00+02:00", "2026-01-01T00:00:00.5Z", null, undefined],
  title: ["", "a", "b", "Ä", "a\nb", null, undefined],
};

type Pick = (below: number) => number;

function someColumns(pick: Pick): Record<string, unknown> {
  const pairs = Object.entries(VALUES).map(([name, all]) => [name, all[pick(all.length)]]);
  return Object.fromEntries(pairs.filter(([, value]) => value !== undefined));
}

function someQuery(pick: Pick): Query {
  const names = Object.keys(VALUES);
  const where = Object.entries(someColumns(pick)).filter(() => pick(3) === 0);
  const down = pick(2) ? "-" : "";
  const order = names.filter(() => pick(4) === 0).map((name) => (pick(5) ? down : "") + name);
  return {
    table: "items",
    where: Object.fromEntries(where),
    order,
    ...(pick(3) && { limit: 1 + pick(12) }),
  };
}

async function edited(client: Client, pick: Pick, edits: number, ids = 60): Promise<void> {
  await valueOf(
    client.transaction((to) => {
      for (let each = 0; each < edits; each += 1) {
        const id = `r${pick(ids)}`;
        if (pick(5) === 0) to.delete("items", id);
        else to.insert("items", id, someColumns(pick));
      }
    }),
  );
}

/** The same queries without an index: of a table that is written alike. */
async function plainly(client: Client, query: Query) {
  const { storage } = client as any;
  const { find } = storage;
  storage.find = undefined;
  const rows = await valueOf(client.query(query));
  storage.find = find;
  return rows;
}

test("every query gives the same rows by indexes as without, whenever they were declared", async () => {
  const pick = chance(7);
  const client = await opened();
  await valueOf(client.declare("items", COLUMNS));
  await edited(client, pick, 60);
  await valueOf(client.declare("items", COLUMNS, { indexes: INDEXES.slice(2) }));
  let byIndex = 0;
  const { storage } = client as any;
  const find = storage.find.bind(storage);
  storage.find = (range: unknown) => {
    byIndex += 1;
    return find(range);
  };
  for (let round = 0; round < 12; round += 1) {
    await edited(client, pick, 20);
    if (round === 4) await valueOf(client.declare("items", {}, { indexes: INDEXES }));
    if (round === 8) await valueOf(client.declare("items", { n: "decimal(38,0)" }));
    for (let each = 0; each < 40; each += 1) {
      const query = someQuery(pick);
      const rows = await valueOf(client.query(query));
      assert.deepEqual(rows, await plainly(client, query), JSON.stringify(query, (_, value: unknown) => typeof value === "bigint" ? String(value) : value)); // prettier-ignore
    }
  }
  assert.ok(byIndex > 150, `${byIndex} queries used an index`);
});

test("a watch shows what a query gives, after each of many commits", async () => {
  const pick = chance(11);
  const client = await opened();
  await valueOf(client.declare("items", COLUMNS, { indexes: INDEXES }));
  const queries = Array.from({ length: 30 }, () => someQuery(pick));
  const shown: unknown[] = [];
  for (const [at, query] of queries.entries()) client.watch(query, (rows) => (shown[at] = rows));
  for (let round = 0; round < 25; round += 1) {
    await edited(client, pick, 1 + pick(60), 300);
    await new Promise((done) => setTimeout(done, 30));
    for (const [at, query] of queries.entries()) {
      assert.deepEqual(shown[at], await plainly(client, query), `round ${round}, query ${at}`);
    }
  }
});

test("a query of some rows on an index reads these alone", async () => {
  const client = await opened();
  await valueOf(client.declare("items", COLUMNS, { indexes: [["done", "n"]] }));
  await valueOf(
    client.transaction((to) => {
      for (let n = 0; n < 2_000; n += 1) to.insert("items", `r${n}`, { n, done: n % 2 === 0 });
    }),
  );
  const { storage } = client as any;
  let read = 0 as number;
  const find = storage.find.bind(storage);
  storage.rows = () => assert.fail("the table was read");
  storage.find = async (range: unknown) => {
    const rows = await find(range);
    read += (rows as unknown[]).length;
    return rows;
  };
  for (const [order, first] of [
    ["n", 0n],
    ["-n", 1998n],
  ] as const) {
    const rows = await valueOf(client.query({ table: "items", where: { done: true }, order, limit: 50 })); // prettier-ignore
    assert.equal(rows.length, 50);
    assert.equal(rows[0]!.n, first);
  }
  assert.equal(read, 100);
});

test("an index that was not whole when the page was closed is built by the next declaration", async () => {
  const name = "indexes broken off";
  const client = await opened(name);
  await valueOf(client.declare("items", COLUMNS));
  await valueOf(
    client.transaction((to) => {
      for (let n = 0; n < 1_300; n += 1) to.insert("items", `r${n}`, { n, done: n % 2 === 0 });
    }),
  );
  const building = client.declare("items", COLUMNS, { indexes: [["n"]] });
  await valueOf(client.insert("items", "late", { n: 7 }));
  const { storage } = client as any;
  assert.equal(storage.memory.tables.get("items").indexes[0].isWhole, false);
  client.close();
  await building.catch(() => undefined);

  const again = await opened(name);
  const idsOf = async () =>
    (await valueOf(again.query({ table: "items", where: { n: 7 } }))).map((row) => row._row_id);
  assert.deepEqual(await idsOf(), ["late", "r7"]);
  await valueOf(again.declare("items", COLUMNS, { indexes: [["n"]] }));
  (again as any).storage.rows = () => assert.fail("the table was read");
  assert.deepEqual(await idsOf(), ["late", "r7"]);
});

test("an index of a column that is not declared is refused", async () => {
  const client = await opened();
  for (const index of [["x"], []]) {
    const result = await client.declare("items", COLUMNS, { indexes: [index] });
    assert.ok(!result.ok);
    assert.equal(result.error.field, "indexes");
  }
});

test("a database that was made before there were indexes is opened, and gets them", async () => {
  const name = "indexes of old";
  const opening = indexedDB.open(name, 1);
  opening.onupgradeneeded = () => {
    makeFirstLayout(opening.result);
  };
  await new Promise((done) => (opening.onsuccess = done));
  opening.result.close();
  const client = await opened(name);
  await valueOf(client.declare("items", COLUMNS, { indexes: [["n"]] }));
  await valueOf(client.insert("items", "r1", { n: 1 }));
  (client as any).storage.rows = () => assert.fail("the table was read");

  const rows = await valueOf(client.query({ table: "items", where: { n: 1n } }));
  assert.deepEqual(rows, [{ n: 1n, _row_id: "r1" }]);
});
