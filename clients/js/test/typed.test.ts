/** Typed columns: what an app writes and reads, how a query compares, and what a watch tells. */

import assert from "node:assert/strict";
import { test } from "node:test";

import "fake-indexeddb/auto";

import { Client, createClient, type DeclaredColumns, type QueriedRow } from "../src/index.js";
import { valueOf } from "./results.js";

const TYPES: DeclaredColumns = {
  title: "string", weight: "number", done: "boolean", tags: "json", n: "integer",
  price: "decimal(9,2)", at: "timestamp", day: "date", photo: "bytes",
}; // prettier-ignore
let number = 0;

interface Given {
  inMemory?: boolean;
  name?: string;
  schemas?: object;
}

/** A client whose gateway has no rows, and perhaps schemas. */
async function opened({ inMemory = false, name = `typed ${number++}`, schemas }: Given = {}) {
  const page = {
    deltas: [],
    serverHlc: "65536",
    hasMore: false,
    epoch: "g1.1",
    scope: "*",
    schemaVersion: 1,
  };
  const result = await Client.open({
    url: "https://gateway.example",
    gateway: "g1",
    clientId: "c1",
    token: "t",
    name,
    inMemory,
    fetch: async (url) =>
      new Response(JSON.stringify((url as string).endsWith("pull") ? page : schemas)),
  });
  assert.ok(result.ok);
  return result.value;
}

const ROW = {
  title: "Milk", weight: 1.5, done: false, tags: ["a", { k: null }], n: 9007199254740993n,
  price: "19.90", at: "2026-05-17T08:00:00.123456789Z", day: "2026-05-17",
  photo: new Uint8Array([0, 255, 7]),
}; // prettier-ignore

for (const inMemory of [false, true]) {
  const where = inMemory ? "in memory" : "in IndexedDB";

  test(`a declared column gives the value that was written, ${where}`, async () => {
    const client = await opened({ inMemory });
    await valueOf(client.declare("items", TYPES));
    await valueOf(client.insert("items", "r1", ROW));

    assert.deepEqual(await valueOf(client.get("items", "r1")), ROW);
    assert.deepEqual(await valueOf(client.query({ table: "items" })), [{ ...ROW, _row_id: "r1" }]);
    assert.deepEqual(client.pending()[0]?.columns, ROW);
  });

  test(`a query compares numbers, times and bytes by their values, ${where}`, async () => {
    const client = await opened({ inMemory });
    await valueOf(client.declare("items", TYPES));
    const rows = {
      n: [-(2n ** 63n), -9007199254740993n, -1, "7", 10n, 2n ** 62n],
      price: ["-100.5", "-9", "0.00", "7", "10.05", "1000"],
      at: [
        "0001-01-01T00:00Z", "1969-12-31T23:59:59.999999998Z", "1969-12-31T23:59:59.999999999Z",
        "2026-05-17T08:00:00+02:00", "2026-05-17T06:30", "2026-05-17T06:30:00.5Z",
      ],
      weight: [-1e300, -1, 0, 1e-300, 2, 10],
      title: ["", "A", "B", "a", "aa", "é"],
    }; // prettier-ignore
    for (const [column, values] of Object.entries(rows)) {
      for (const [place, value] of [...values.entries()].reverse()) {
        await valueOf(client.update("items", `${column}${place}`, { [column]: value }));
      }
      const found = await valueOf(client.query({ table: "items", order: column }));
      const ids = found.filter((row) => row[column] !== undefined).map((row) => row._row_id);
      assert.deepEqual(ids, [...values.keys()].map((place) => `${column}${place}`), column); // prettier-ignore
      const down = await valueOf(client.query({ table: "items", order: `-${column}` }));
      assert.deepEqual(
        down.map((row) => row._row_id),
        found.map((row) => row._row_id).reverse(),
      );
    }
    const idsOf = async (where: object) =>
      (await valueOf(client.query({ table: "items", where: { ...where } }))).map(
        (row) => row._row_id,
      );
    assert.deepEqual(await idsOf({ n: 7 }), ["n3"]);
    assert.deepEqual(await idsOf({ n: 7n }), ["n3"]);
    assert.deepEqual(await idsOf({ price: "10.050" }), ["price4"]);
    assert.deepEqual(await idsOf({ at: new Date("2026-05-17T06:00:00Z") }), ["at3"]);
    assert.deepEqual(await idsOf({ title: null, weight: 2 }), ["weight4"]);
  });

  test(`a watch tells each change of its answer once, and no other, ${where}`, async () => {
    const client = await opened({ inMemory });
    await valueOf(client.declare("items", { n: "integer", done: "boolean" }));
    for (const n of [5, 3, 1]) await valueOf(client.insert("items", `r${n}`, { n, done: false }));
    const told: (readonly QueriedRow[])[] = [];
    const query = { table: "items", where: { done: false }, order: "n", limit: 2 };
    const end = client.watch(query, (rows) => told.push(rows));
    const now = async () => {
      await new Promise((done) => setTimeout(done, 20));
      const rows = told.at(-1)!;
      assert.deepEqual(rows, await valueOf(client.query(query)));
      return [told.length, rows.map((row) => row._row_id)];
    };

    assert.deepEqual(await now(), [1, ["r1", "r3"]]);
    await valueOf(client.insert("items", "r9", { n: 9, done: false }));
    await valueOf(client.insert("others", "r0", { n: 0, done: false }));
    await valueOf(client.update("items", "r1", { n: 1n }));
    assert.deepEqual(await now(), [1, ["r1", "r3"]]);
    const [r1] = told.at(-1)!;
    await valueOf(client.update("items", "r5", { n: 2 }));
    assert.deepEqual(await now(), [2, ["r1", "r5"]]);
    assert.equal(told.at(-1)![0], r1);
    await valueOf(client.update("items", "r1", { done: true }));
    await valueOf(client.delete("items", "r5"));
    assert.deepEqual(await now(), [4, ["r3", "r9"]]);
    end();
    await valueOf(client.delete("items", "r3"));
    assert.equal(told.length, 4);
  });
}

test("a watch with a limit goes on behind the rows that it held", async () => {
  const client = await opened();
  await valueOf(
    client.transaction((edits) => {
      for (let n = 0; n < 300; n += 1) edits.insert("items", `r${n}`, { n });
    }),
  );
  let last: readonly QueriedRow[] = [];
  client.watch({ table: "items", order: "-n", limit: 3 }, (rows) => (last = rows));
  await valueOf(client.get("items", "r1"));
  await valueOf(
    client.transaction((edits) => {
      for (let n = 200; n < 300; n += 1) edits.delete("items", `r${n}`);
    }),
  );
  await new Promise((done) => setTimeout(done, 100));

  assert.deepEqual(last.map((row) => row.n), [199, 198, 197]); // prettier-ignore
});

test("a value of another type is refused with its column, and nothing is written", async () => {
  const client = await opened();
  await valueOf(client.declare("items", TYPES));
  const wrong = {
    title: [1, 1n],
    n: ["007", 1.5, 2 ** 53, 2n ** 63n, "x", true, new Date()],
    price: ["19.901", "1e3", 12345678.9, "0x1", "", "."],
    at: ["2026-02-30T00:00Z", "tomorrow", 5, new Date(NaN), new Date(8.64e15)],
    day: [new Date(), "2026-5-1", "2026-02-30"],
    photo: ["AAA", "no base64", [1]],
    tags: [1n, new Date(), new Uint8Array(), NaN],
    done: [0, "true"],
  };
  for (const [column, values] of Object.entries(wrong)) {
    for (const value of values) {
      const result = await client.insert("items", "r1", { [column]: value });
      assert.ok(!result.ok, `${column} takes ${String(value)}`);
      assert.match(result.error.code, /^(SCHEMA|VALIDATION)_ERROR$/);
      assert.equal(result.error.field, column);
    }
  }
  assert.equal(await valueOf(client.get("items", "r1")), null);
  assert.equal(client.status.waiting, 0);
});

test("an undeclared column takes JSON only, and says how it takes more", async () => {
  const client = await opened();
  const result = await client.insert("items", "r1", { n: 1n });
  assert.ok(!result.ok);
  assert.equal(result.error.field, "n");
  assert.match(result.error.message, /declare the column n/);
  await valueOf(client.insert("items", "r1", { n: 9007199254740992, text: "007" }));
  assert.deepEqual(await valueOf(client.get("items", "r1")), { n: 9007199254740992, text: "007" });
});

test("a declaration outlives the page, and a new one is read at once", async () => {
  const name = "typed again";
  const client = await opened({ name });
  await valueOf(client.declare("items", { n: "integer" }));
  await valueOf(client.insert("items", "r1", { n: "9007199254740993", day: "x" }));
  client.close();
  const again = await opened({ name });
  let last: readonly QueriedRow[] = [];
  again.watch({ table: "items" }, (rows) => (last = rows));
  assert.deepEqual(await valueOf(again.get("items", "r1")), { n: 9007199254740993n, day: "x" });
  await valueOf(again.declare("items", { n: "string" }));
  await new Promise((done) => setTimeout(done, 50));
  assert.deepEqual(last, [{ n: "9007199254740993", day: "x", _row_id: "r1" }]);

  const wrong = await again.declare("items", { n: "int" as never });
  assert.ok(!wrong.ok);
  assert.equal(wrong.error.code, "SCHEMA_ERROR");
});

test("the gateway's schema types what is not declared, and refuses no JSON", async () => {
  const columns = [
    { name: "n", type: "integer" },
    { name: "photo", type: "bytes" },
  ];
  const client = await opened({ schemas: { tables: [{ table: "Items", columns }] } });
  await valueOf(client.insert("items", "r1", { n: 1, photo: "AAA=", other: 2 }));
  let last: readonly QueriedRow[] = [];
  client.watch({ table: "items" }, (rows) => (last = rows));
  await valueOf(client.get("items", "r1"));
  await valueOf(client.sync("pull"));
  await new Promise((done) => setTimeout(done, 50));
  const row = { n: 1n, photo: new Uint8Array(2), other: 2 };

  assert.deepEqual(await valueOf(client.get("items", "r1")), row);
  assert.deepEqual(last, [{ ...row, _row_id: "r1" }]);
  await valueOf(client.update("items", "r1", { n: 2n ** 60n }));
  await valueOf(client.update("items", "r1", { photo: "written by a later app" }));
  assert.deepEqual(await valueOf(client.get("items", "r1")), {
    n: 2n ** 60n,
    photo: "written by a later app",
    other: 2,
  });
});

test("createClient opens, declares and connects; a wrong schema is told, and nothing stays open", async () => {
  const asked: string[] = [];
  const config = {
    name: "created",
    clientId: "c1",
    gateway: {
      url: "https://gateway.example",
      gatewayId: "g1",
      getToken: () => "t",
      fetch: async (url: unknown) => {
        asked.push(url as string);
        return new Response("{}", { status: 503 });
      },
    },
  };
  const columns = [{ name: "n", type: "integer" as const }];
  const wrong = await createClient({ ...config, schemas: [{ table: "1", columns }] });
  assert.ok(!wrong.ok);
  const quiet = await valueOf(
    createClient({ ...config, autoSyncMs: 0, schemas: [{ table: "items", columns }] }),
  );
  await valueOf(quiet.insert("items", "r1", { n: 1 }));
  await new Promise((done) => setTimeout(done, 50));
  assert.deepEqual(asked, []);
  quiet.close();
  const client = await valueOf(createClient({ ...config, schemas: [] }));
  await new Promise((done) => setTimeout(done, 100));
  assert.match(asked[0]!, /gateway.example.sync.g1/);
  assert.deepEqual(await valueOf(client.get("items", "r1")), { n: 1n });
  client.close();
});

test("a watch of a table without rows shows those that come by the schema that came before them", async () => {
  const columns = [{ name: "photo", type: "bytes" }];
  const client = await opened({ schemas: { tables: [{ table: "items", columns }] } });
  let last: readonly QueriedRow[] = [];
  client.watch({ table: "items" }, (rows) => (last = rows));
  await new Promise((done) => setTimeout(done, 50));
  await valueOf(client.sync("pull"));
  await valueOf(client.insert("items", "r1", { photo: "AAA=" }));
  await new Promise((done) => setTimeout(done, 50));

  assert.deepEqual(last, [{ photo: new Uint8Array(2), _row_id: "r1" }]);
});
