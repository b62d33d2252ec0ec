/** A page that does with a client what a test tells it, and shows the rows of a table. */

import { Client } from "/client/index.js";

/** What is true of a page from its beginning on; tests read it. */
const app = (globalThis.app = { client: null, module: { Client }, heard: [] });

/** Get a token as an app does: from its own server, which knows who is signed in. */
const tokenOf = (clientId) => async () => {
  const answer = await fetch(`/token/${clientId}`, { cache: "no-store" });
  return answer.text();
};

app.open = async (options) => {
  const opened = await Client.open({ token: tokenOf(options.clientId), ...options });
  if (opened.ok) app.client = opened.value;
  return plain(opened.ok ? { ok: true } : opened);
};

/** Call a method of the client; or read what it has by this name. */
app.ask = async (method, given) => {
  const member = app.client[method];
  const answer = typeof member === "function" ? await app.client[method](...given) : member;
  return plain(answer ?? null);
};

app.transaction = async (edits) =>
  plain(
    await app.client.transaction((to) => {
      for (const [name, ...rest] of edits) to[name](...rest);
    }),
  );

/** Show a table, a row a line; the text of a line is that of a column. */
app.show = (query, column) => {
  app.client.watch(query, (rows) => {
    document
      .querySelector("#rows")
      .replaceChildren(
        ...rows.map((row) => Object.assign(document.createElement("li"), { textContent: row[column] })),
      );
  });
};

app.count = async (table) => (await app.client.query({ table })).value.length;

/** All that this browser has stored of the site, as text. */
app.stored = async () => {
  const all = [];
  for (const { name } of await indexedDB.databases()) {
    const database = await answered(indexedDB.open(name));
    for (const store of database.objectStoreNames) {
      const values = await answered(database.transaction(store).objectStore(store).getAll());
      all.push(...values.map((value) => told(value)));
    }
    database.close();
  }
  return all.join("\n");
};

const answered = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

const told = (value) =>
  JSON.stringify(value, (_, each) =>
    typeof each === "bigint"
      ? String(each)
      : each instanceof Map || each instanceof Set
        ? [...each]
        : each,
  );

/** A value that a test can read: stamps as text, errors as objects. */
const plain = (value) =>
  JSON.parse(
    JSON.stringify(value, (_, each) =>
      typeof each === "bigint"
        ? String(each)
        : each instanceof Error
          ? { name: each.name, message: each.message, ...each }
          : each,
    ),
  );

app.isReady = true;
