/** What `benchmarks/browser.py` measures in a page. Times are milliseconds. */

import { Client } from "/client/index.js";

const COLUMNS = { list: "string", place: "integer", title: "string", done: "boolean", turn: "integer" };

const bench = (globalThis.bench = {});

const valueOf = (result) => {
  if (!result.ok) throw new Error(result.error.message);
  return result.value;
};

/** A gateway that has pages ready, and takes no pushes. */
const scripted = (pages) => {
  const empty = (page) => ({ ...page, deltas: [], hasMore: false });
  let last = { serverHlc: "0", epoch: "e1" };
  return async (url) => {
    if (!url.endsWith("/pull")) return Response.json({ tables: [] });
    const next = pages.shift();
    if (next === undefined) return Response.json(empty(last));
    last = { ...last, serverHlc: next.serverHlc };
    return new Response(next.text, { headers: { "content-type": "application/json" } });
  };
};

const opened = async (options) =>
  valueOf(
    await Client.open({ url: "https://nowhere.invalid", gateway: "bench", token: "t", ...options }),
  );

const randomId = () =>
  [...crypto.getRandomValues(new Uint8Array(32))]
    .map((byte) => byte.toString(16).padStart(2, "0"))
    .join("");

/** Pages as the gateway's JSON has them, of rows of one client. */
const pagesOf = (rows, perPage, lists) => {
  const pages = [];
  const base = BigInt(Date.now() - 3_600_000) << 16n;
  for (let first = 0; first < rows; first += perPage) {
    const deltas = [];
    for (let number = first; number < Math.min(first + perPage, rows); number += 1) {
      deltas.push({
        op: "INSERT",
        table: "todos",
        rowId: `t${String(number).padStart(7, "0")}`,
        clientId: "another-device",
        hlc: String(base + BigInt(number)),
        deltaId: randomId(),
        columns: [
          { column: "done", value: number % 3 === 0 },
          { column: "list", value: `list-${number % lists}` },
          { column: "place", value: number },
          { column: "title", value: `Buy milk, number ${number}` },
          { column: "turn", value: 0 },
        ],
      });
    }
    const serverHlc = String(base + BigInt(first + perPage));
    const hasMore = first + perPage < rows;
    const text = JSON.stringify({ deltas, serverHlc, hasMore, epoch: "e1", scope: "*" });
    pages.push({ text, serverHlc });
  }
  return pages;
};

// --- edits ----------------------------------------------------------------------------------------

/** The puts of one edit: store, value and key. */
const putsOf = async (edit) => {
  const { put } = IDBObjectStore.prototype;
  const puts = [];
  IDBObjectStore.prototype.put = function (value, key) {
    puts.push({ store: this.name, value: structuredClone(value), key });
    return put.call(this, value, key);
  };
  try {
    await edit();
  } finally {
    IDBObjectStore.prototype.put = put;
  }
  return puts;
};

const asked = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** A database with the stores and indexes of another. */
const likeness = async (name) => {
  const [{ name: original }] = await indexedDB.databases();
  const source = await asked(indexedDB.open(original));
  const reading = source.transaction([...source.objectStoreNames]);
  const stores = [...source.objectStoreNames].map((each) => {
    const store = reading.objectStore(each);
    const indexes = [...store.indexNames].map((index) => {
      const { keyPath, multiEntry, unique } = store.index(index);
      return [index, keyPath, { multiEntry, unique }];
    });
    return { name: each, options: { autoIncrement: store.autoIncrement }, indexes };
  });
  const opening = indexedDB.open(name);
  opening.onupgradeneeded = () => {
    for (const { name: each, options, indexes } of stores) {
      const store = opening.result.createObjectStore(each, options);
      for (const index of indexes) store.createIndex(...index);
    }
  };
  const database = await asked(opening);
  source.close();
  return database;
};

/** Edits, and by turns transactions of IndexedDB alone with the same puts. */
bench.edits = async (count, warmUp) => {
  const client = await opened({ clientId: "edits" });
  valueOf(await client.declare("todos", COLUMNS));
  const edit = async (number) => {
    const columns = { list: "list-7", place: number, title: `Buy milk ${number}`, done: false };
    valueOf(await client.insert("todos", `t${number % 200}`, columns));
  };
  await edit(0);
  const puts = await putsOf(() => edit(1));
  const database = await likeness("alone");
  const stores = [...new Set(puts.map(({ store }) => store))];
  const alone = (number) =>
    new Promise((resolve, reject) => {
      const transaction = database.transaction(stores, "readwrite", { durability: "strict" });
      for (const { store, value, key } of puts) {
        const isRow = store === "rows";
        const own = typeof key === "string" ? `${key}${isRow ? number % 200 : number}` : key;
        transaction.objectStore(store).put(value, own);
      }
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
  const measured = async (body, number) => {
    const start = performance.now();
    await body(number);
    return performance.now() - start;
  };
  const edits = [];
  const bare = [];
  for (let number = 2; number < count + warmUp; number += 1) {
    const both = [await measured(edit, number), await measured(alone, number)];
    if (number < warmUp) continue;
    edits.push(both[0]);
    bare.push(both[1]);
  }
  client.close();
  return { edits, bare, puts: puts.map(({ store }) => store) };
};

// --- applying -------------------------------------------------------------------------------------

/** Apply pages that arrive at once; returns how long that took. */
bench.applies = async (clientId, rows, perPage) => {
  const client = await opened({ clientId, fetch: scripted(pagesOf(rows, perPage, 2_000)) });
  const start = performance.now();
  valueOf(await client.sync("pull"));
  const spent = performance.now() - start;
  const found = valueOf(await client.query({ table: "todos", limit: rows + 1 }));
  if (found.length !== rows) throw new Error(`${found.length} rows`);
  client.close();
  return spent;
};

/** Read everything from a gateway; returns how long that took, and how long the page was blocked. */
bench.firstSync = async (options, rows) => {
  const client = await opened(options);
  const tasks = [];
  const observer = new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) tasks.push(duration);
  });
  observer.observe({ entryTypes: ["longtask"] });
  const start = performance.now();
  valueOf(await client.sync());
  const spent = performance.now() - start;
  await new Promise((resolve) => setTimeout(resolve, 200)); // what was observed is told later
  observer.disconnect();
  const found = valueOf(await client.query({ table: "todos", limit: rows + 1 }));
  if (found.length !== rows) throw new Error(`${found.length} rows`);
  client.close();
  return { spent, tasks };
};

// --- watching -------------------------------------------------------------------------------------

/** When the latest transaction that writes has committed. */
const commits = () => {
  const { transaction } = IDBDatabase.prototype;
  const seen = { ms: 0 };
  IDBDatabase.prototype.transaction = function (...given) {
    const begun = transaction.apply(this, given);
    if (begun.mode === "readwrite") {
      begun.addEventListener("complete", () => (seen.ms = performance.now()));
    }
    return begun;
  };
  return seen;
};

/** Edit one of the rows of a watched query; returns how long after each commit it was shown. */
bench.watches = async (rows, lists, edits) => {
  const client = await opened({ clientId: "watch", fetch: scripted(pagesOf(rows, 1_000, lists)) });
  valueOf(await client.declare("todos", COLUMNS, { indexes: [["list", "place"]] }));
  valueOf(await client.sync("pull"));
  const committed = commits();
  let told = () => undefined;
  const shown = () => new Promise((resolve) => (told = resolve));
  const first = shown();
  const query = { table: "todos", where: { list: "list-7" }, order: "place" };
  client.watch(query, (found) => told({ found, ms: performance.now() }));
  const before = (await first).found;
  if (before.length !== rows / lists) throw new Error(`${before.length} rows`);
  const waits = [];
  for (let turn = 1; turn <= edits; turn += 1) {
    const next = shown();
    valueOf(await client.update("todos", before[turn % before.length]._row_id, { turn }));
    const { found, ms } = await next;
    if (!found.some((row) => row.turn === turn || row.turn === BigInt(turn))) {
      throw new Error("another row was shown");
    }
    waits.push(ms - committed.ms);
    await new Promise((resolve) => setTimeout(resolve, 5)); // as a person edits
  }
  client.close();
  return waits;
};

// --- broadcasts -----------------------------------------------------------------------------------

/** Show one row by a socket; `bench.shownAt` has when each text was in the page, since 1970. */
bench.shows = async (options) => {
  const client = await opened(options);
  bench.shownAt = {};
  client.watch({ table: "live" }, ([row]) => {
    if (!row) return;
    document.body.textContent = row.title;
    bench.shownAt[row.title] = performance.timeOrigin + performance.now();
  });
  client.connect();
  while (!client.status.isLive) await new Promise((resolve) => setTimeout(resolve, 10));
};

bench.isReady = true;
