/** Conflicts that an app resolves: which value stays, and what that writes. */

import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";

import type { Client, Conflict, Result } from "../src/index.js";
import { newGateway } from "./gateway.js";

let ada: Client;
let grace: Client;

async function value<T>(result: Promise<Result<T>>): Promise<T> {
  const settled = await result;
  if (!settled.ok) throw settled.error;
  return settled.value;
}

const synced = async (...clients: Client[]): Promise<void> => {
  for (const client of clients) await value(client.sync());
};

const titles = async (): Promise<unknown[]> => {
  await synced(ada, grace, ada);
  const rows = await Promise.all([ada, grace].map((each) => value(each.get("todos", "r1"))));
  return rows.map((row) => row?.title ?? null);
};

/** Let the clocks go on: of two edits within a millisecond either may be the later one. */
const later = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 3));

const only = (client: Client): Conflict => {
  const all = client.conflicts();
  assert.equal(all.length, 1);
  return all[0]!;
};

beforeEach(async () => {
  const open = newGateway();
  [ada, grace] = await Promise.all([open("ada"), open("grace")]);
  await value(ada.insert("todos", "r1", { title: "Milk", done: false }));
  await synced(ada, grace);
});

/** Both change the title; the later one, Grace's, is at the gateway first, so Ada's is lost. */
async function contested(): Promise<Conflict> {
  await value(ada.update("todos", "r1", { title: "Oat milk" }));
  await later();
  await value(grace.update("todos", "r1", { title: "Soy milk" }));
  await synced(grace, ada);
  const conflict = only(ada);
  const { own, other, base, won, otherClient } = conflict;
  assert.deepEqual(
    [own, other, base, won, otherClient],
    ["Oat milk", "Soy milk", "Milk", false, "grace"],
  );
  return conflict;
}

test("mine is written again where the other's stands", async () => {
  const { id } = await contested();
  const delta = await value(ada.resolve(id, "mine"));

  assert.deepEqual(delta?.columns, [["title", '"Oat milk"']]);
  assert.deepEqual(ada.conflicts(), []);
  assert.deepEqual(await titles(), ["Oat milk", "Oat milk"]);
  assert.deepEqual([...ada.conflicts(), ...grace.conflicts()], []);
});

test("theirs writes nothing where it stands", async () => {
  const { id } = await contested();

  assert.equal(await value(ada.resolve(id, "theirs")), null);
  assert.deepEqual([ada.conflicts(), ada.status.waiting], [[], 0]);
  assert.deepEqual(await titles(), ["Soy milk", "Soy milk"]);
});

test("another value is written, whoever won", async () => {
  const { id } = await contested();
  await value(ada.resolve(id, "new", "Any milk"));

  assert.deepEqual(await titles(), ["Any milk", "Any milk"]);
});

test("theirs is written again where mine won", async () => {
  await value(grace.update("todos", "r1", { title: "Soy milk" }));
  await later();
  await value(ada.update("todos", "r1", { title: "Oat milk" }));
  await synced(grace, ada, grace);
  const { id, won, own, other } = only(ada);
  assert.deepEqual([won, own, other], [true, "Oat milk", "Soy milk"]);
  assert.deepEqual(grace.conflicts(), []);

  await value(ada.resolve(id, "theirs"));
  assert.deepEqual(await titles(), ["Soy milk", "Soy milk"]);
});

test("a value of a row that the other deleted makes the row again", async () => {
  await value(ada.update("todos", "r1", { title: "Oat milk" }));
  await later();
  await value(grace.delete("todos", "r1"));
  await synced(grace, ada);
  const { id, deleted, won } = only(ada);
  assert.deepEqual([deleted, won], [true, false]);
  const delta = await value(ada.resolve(id, "mine"));

  assert.equal(delta?.op, "INSERT");
  assert.deepEqual(await titles(), ["Oat milk", "Oat milk"]);
});

test("the own deletion is made again where an edit came after it", async () => {
  await value(grace.update("todos", "r1", { title: "Soy milk" }));
  await synced(grace);
  await later();
  await value(ada.delete("todos", "r1"));
  await synced(ada);
  const { id, deleted, won } = only(ada);
  assert.deepEqual([deleted, won], [true, true]);
  assert.equal(await value(ada.resolve(id, "mine")), null);
  assert.deepEqual(await titles(), [null, null]);
});

test("a conflict that is not there, or a choice that is none, is refused", async () => {
  const { id } = await contested();
  const unknown = await ada.resolve("99", "mine");
  const strange = await ada.resolve(id, "both" as "mine");

  assert.deepEqual(
    [unknown.ok || unknown.error.code, strange.ok || strange.error.code],
    ["NOT_FOUND", "VALIDATION_ERROR"],
  );
  assert.equal(ada.conflicts().length, 1);
});
