/** Storage that fails: what an app is told of it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import "fake-indexeddb/auto";

import { Client } from "../src/index.js";

test("a client whose database is closed refuses to read and to write, and throws nothing", async () => {
  const address = { url: "https://gateway.example", gateway: "g1", clientId: "c1", token: "t" };
  const opened = await Client.open({ ...address, name: "closed" });
  assert.ok(opened.ok);
  const client = opened.value;
  await client.insert("todos", "r1", { n: 1 });
  const told: string[] = [];

  client.close();
  client.watch(
    { table: "todos" },
    () => assert.fail("there is nothing to read"),
    (error) => told.push(error.code),
  );
  const results = [
    await client.get("todos", "r1"),
    await client.query({ table: "todos" }),
    await client.insert("todos", "r2", { n: 2 }),
    await client.sync(),
  ];

  assert.deepEqual(
    results.map((result) => (result.ok ? "ok" : result.error.code)),
    ["STORAGE_FAILED", "STORAGE_FAILED", "CLOSED", "CLOSED"],
  );
  assert.deepEqual(told, ["STORAGE_FAILED"]);
});
