/** Collections of TanStack DB, by the library itself: what they show is what the client has. */

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import {
  BasicIndex,
  createCollection,
  createLiveQueryCollection,
  createTransaction,
  eq,
  type StandardSchema,
} from "@tanstack/db";

import { LakeSyncError, type Client } from "../src/index.js";
import { lakesyncCollectionOptions, lakesyncMutation } from "../src/tanstack.js";
import { listenersOf, openClient } from "./gateway.js";

interface Todo {
  id: string;
  title: string;
  list: string;
  done?: boolean | null;
}
interface List {
  _row_id: string;
  name: string;
}

let client: Client;
let ends: (() => Promise<void>)[];

beforeEach(async () => {
  client = await openClient(({ columns }) => (columns.title === "" ? "SCHEMA_ERROR" : ""));
  ends = [];
});
afterEach(async () => {
  for (const end of ends) await end();
});

const ended = <T extends { cleanup: () => Promise<void> }>(collection: T): T => {
  ends.unshift(() => collection.cleanup());
  return collection;
};

const todosOf = () =>
  ended(
    createCollection(
      lakesyncCollectionOptions<Todo>({
        client,
        table: "todos",
        key: "id",
        autoIndex: "eager",
        defaultIndexType: BasicIndex,
      }),
    ),
  );
const listsOf = () =>
  ended(createCollection(lakesyncCollectionOptions<List>({ client, table: "lists" })));

const value = async <T>(result: Promise<{ ok: true; value: T } | { ok: false; error: Error }>) => {
  const settled = await result;
  if (!settled.ok) throw settled.error;
  return settled.value;
};

const settled = () => new Promise<void>((resolve) => setImmediate(resolve));

test("a collection has the rows of its table, and follows edits of the client", async () => {
  await value(client.insert("todos", "t1", { title: "Milk", list: "l1" }));
  const todos = todosOf();
  await todos.preload();
  assert.deepEqual(todos.toArray.map(plain), [{ id: "t1", title: "Milk", list: "l1" }]);

  await value(client.insert("todos", "t2", { title: "Bread", list: "l1" }));
  await value(client.update("todos", "t1", { title: "Oat milk" }));
  await settled();
  assert.deepEqual(titles(todos), ["Bread", "Oat milk"]);

  await value(client.delete("todos", "t1"));
  await settled();
  assert.deepEqual(titles(todos), ["Bread"]);
});

test("rows that stay the same are no changes", async () => {
  await value(client.insert("todos", "t1", { title: "Milk", list: "l1" }));
  await value(client.insert("todos", "t2", { title: "Bread", list: "l1" }));
  const todos = todosOf();
  await todos.preload();
  const kept = todos.get("t2");
  const changed: string[] = [];
  todos.subscribeChanges((changes) => changed.push(...changes.map(({ value: { id } }) => id)));
  await value(client.update("todos", "t1", { title: "Oat milk" }));
  await settled();

  assert.deepEqual(changed, ["t1"]);
  assert.equal(todos.get("t2"), kept);
});

/** A row without what TanStack DB adds to it. */
const plain = (row: object) =>
  Object.fromEntries(Object.entries(row).filter(([name]) => !name.startsWith("$")));
const titles = (todos: { toArray: readonly { title: string }[] }) =>
  todos.toArray.map(({ title }) => title).sort();

test("a collection of some rows only has those that have the values", async () => {
  await value(client.insert("todos", "t1", { title: "Milk", list: "l1" }));
  await value(client.insert("todos", "t2", { title: "Bread", list: "l2" }));
  const todos = ended(
    createCollection(
      lakesyncCollectionOptions<Todo>({
        client,
        table: "Todos",
        key: "id",
        where: { list: "l2" },
      }),
    ),
  );
  await todos.preload();
  assert.deepEqual(titles(todos), ["Bread"]);

  await value(client.update("todos", "t1", { list: "l2" }));
  await settled();
  assert.deepEqual(titles(todos), ["Bread", "Milk"]);
});

test("edits of a collection are shown at once, and durable when they are settled", async () => {
  const todos = todosOf();
  await todos.preload();
  const inserted = todos.insert({ id: "t1", title: "Milk", list: "l1" });
  assert.deepEqual(titles(todos), ["Milk"]);
  await inserted.when("settled");
  assert.deepEqual(await value(client.get("todos", "t1")), { title: "Milk", list: "l1" });

  await todos
    .update("t1", (todo) => {
      todo.done = true;
      delete (todo as Partial<Todo>).title;
    })
    .when("settled");
  assert.deepEqual(await value(client.get("todos", "t1")), { title: null, list: "l1", done: true });
  assert.equal(client.pending().length, 2);
  assert.deepEqual(client.pending()[1]!.columns, { done: true, title: null });

  await todos.delete("t1").when("settled");
  assert.equal(await value(client.get("todos", "t1")), null);
  assert.deepEqual(todos.toArray, []);
});

test("no edit is hidden for a moment, however fast they follow each other", async () => {
  await value(client.insert("todos", "t1", { title: "0", list: "l1" }));
  const query = client.query.bind(client);
  client.query = async (given) => {
    await settled(); // as a browser's storage, which takes its time
    return query(given);
  };
  const todos = todosOf();
  await todos.preload();
  const seen: string[] = [];
  todos.subscribeChanges((changes) => {
    for (const change of changes) seen.push(change.value.title);
  });
  const edits = Array.from({ length: 20 }, (_, at) =>
    todos.update("t1", (todo) => void (todo.title = String(at + 1))),
  );
  await Promise.all(edits.map((edit) => edit.when("settled")));
  await settled();

  assert.deepEqual(
    seen.map(Number),
    [...seen].map(Number).sort((one, other) => one - other),
  );
  assert.equal(seen.at(-1), "20");
});

test("several edits are one transaction of the client, in several collections too", async () => {
  const [todos, lists] = [todosOf(), listsOf()];
  await Promise.all([todos.preload(), lists.preload()]);
  const transaction = createTransaction({ mutationFn: lakesyncMutation });
  transaction.mutate(() => {
    lists.insert({ _row_id: "l1", name: "Home" });
    todos.insert([
      { id: "t1", title: "Milk", list: "l1" },
      { id: "t2", title: "Bread", list: "l1" },
    ]);
  });
  await transaction.when("settled");

  assert.deepEqual(
    client.pending().map(({ table, rowId, columns }) => [table, rowId, columns]),
    [
      ["lists", "l1", { name: "Home" }],
      ["todos", "t1", { title: "Milk", list: "l1" }],
      ["todos", "t2", { title: "Bread", list: "l1" }],
    ],
  );
  assert.deepEqual([titles(todos), lists.toArray.length], [["Bread", "Milk"], 1]);
});

test("collections of two clients are not edited in one transaction", async () => {
  const other = await openClient();
  const lists = ended(
    createCollection(lakesyncCollectionOptions<List>({ client: other, table: "lists" })),
  );
  const todos = todosOf();
  const transaction = createTransaction({ mutationFn: lakesyncMutation });
  transaction.mutate(() => {
    lists.insert({ _row_id: "l1", name: "Home" });
    todos.insert({ id: "t1", title: "Milk", list: "l1" });
  });

  await assert.rejects(transaction.when("settled"), /one client/);
  assert.deepEqual([client.pending(), other.pending()], [[], []]);
});

test("an edit that the client refuses is taken back, and its error is told", async () => {
  const todos = todosOf();
  await todos.preload();
  const inserted = todos.insert({ id: "", title: "Milk", list: "l1" });

  await assert.rejects(inserted.when("settled"), (error) => error instanceof LakeSyncError);
  assert.deepEqual(todos.toArray, []);
});

test("a live query joins tables, and shows a refused edit until the app discards it", async () => {
  await value(client.insert("lists", "l1", { name: "Home" }));
  await value(client.insert("todos", "t1", { title: "Milk", list: "l1" }));
  const [todos, lists] = [todosOf(), listsOf()];
  const live = ended(
    createLiveQueryCollection((query) =>
      query
        .from({ todo: todos })
        .innerJoin({ list: lists }, ({ todo, list }) => eq(todo.list, list._row_id))
        .select(({ todo, list }) => ({ id: todo.id, title: todo.title, list: list.name })),
    ),
  );
  await live.preload();
  const shown = () => live.toArray.map(({ title, list }) => `${list}: ${title}`);
  assert.deepEqual(shown(), ["Home: Milk"]);

  const edited = todos.update("t1", (todo) => void (todo.title = ""));
  assert.deepEqual(shown(), ["Home: "]);
  await edited.when("settled");
  assert.deepEqual(shown(), ["Home: "]);

  await value(client.sync());
  const [refused] = client.quarantined();
  assert.equal(refused!.code, "SCHEMA_ERROR");
  assert.deepEqual(shown(), ["Home: "]);

  await value(client.discard(refused!.deltaId));
  await settled();
  assert.deepEqual(shown(), ["Home: Milk"]);

  await value(client.update("lists", "l1", { name: "Work" }));
  await settled();
  assert.deepEqual(shown(), ["Work: Milk"]);
});

test("a schema gives the collection its types and checks its edits", async () => {
  const schema: StandardSchema<Todo> = {
    "~standard": {
      version: 1,
      vendor: "test",
      validate: (value) =>
        (value as Partial<Todo>).title === ""
          ? { issues: [{ message: "a title is needed" }] }
          : { value: value as Todo },
    },
  };
  const todos = ended(
    createCollection(lakesyncCollectionOptions({ client, table: "todos", key: "id", schema })),
  );
  await todos.preload();
  await todos.insert({ id: "t1", title: "Milk", list: "l1" }).when("settled");
  const todo: Todo = todos.get("t1")!;

  assert.equal(todo.title, "Milk");
  assert.throws(() => todos.insert({ id: "t2", title: "", list: "l1" }), /a title is needed/);
});

test("rows that cannot be read are an error of the collection, until they can", async () => {
  const query = client.query.bind(client);
  client.query = () =>
    Promise.resolve({ ok: false, error: new LakeSyncError("STORAGE_FAILED", "no storage") });
  const todos = todosOf();
  await assert.rejects(todos.preload(), /no storage/);
  assert.equal(todos.status, "error");

  client.query = query;
  await value(client.insert("todos", "t1", { title: "Milk", list: "l1" }));
  await settled();
  assert.equal(todos.status, "ready");
  assert.deepEqual(titles(todos), ["Milk"]);
});

test("a collection that ends leaves no listener, and may begin again", async () => {
  const todos = todosOf();
  await todos.preload();
  assert.equal(listenersOf(client), 1);
  await todos.cleanup();
  assert.equal(listenersOf(client), 0);

  await value(client.insert("todos", "t1", { title: "Milk", list: "l1" }));
  await todos.preload();
  assert.deepEqual(titles(todos), ["Milk"]);
});
