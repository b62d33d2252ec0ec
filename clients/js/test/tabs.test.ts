/** Several tabs of one browser with one client: one owns it, and it may die at any moment. */

import assert from "node:assert/strict";
import { afterEach, mock, test } from "node:test";

import "fake-indexeddb/auto";

import type { Client, Status } from "../src/index.js";
import { PROTOCOL } from "../src/tabs.js";
import { Browsers, endAll, until, type Tab } from "./browsers.js";
import { Gateway } from "./fakegateway.js";
import { makeFirstLayout } from "./results.js";

const NAME = "lakesync test browser";

afterEach(endAll);

const ok = <T>(result: { ok: true; value: T } | { ok: false; error: Error }): T => {
  if (!result.ok) throw result.error;
  return result.value;
};
const codeOf = (result: { ok: boolean; error?: { code: string } }): string | undefined =>
  result.error?.code;

/** Two tabs; the first one owns the client. */
async function two(browsers = new Browsers()): Promise<[Tab, Client, Tab, Client]> {
  const [first, second] = [browsers.tab(), browsers.tab()];
  return [first, await first.open(), second, await second.open()];
}

const stored = (browsers: Browsers, store: string): Promise<[unknown[], unknown[]]> =>
  new Promise((resolve, reject) => {
    const opening = browsers.indexedDB.open(NAME);
    opening.onerror = () => reject(new Error(String(opening.error)));
    opening.onsuccess = () => {
      const from = opening.result.transaction(store).objectStore(store);
      const keys = from.getAllKeys();
      const values = from.getAll();
      values.onsuccess = () => {
        opening.result.close();
        resolve([keys.result, values.result]);
      };
    };
  });

test("a tab reads what it wrote, and every tab is told", async () => {
  const [, owner, , follower] = await two();
  const told = new Set<string>();
  const shown: unknown[] = [];
  owner.onChange((tables) => told.add(`owner ${[...tables].join()}`));
  follower.onChange((tables) => told.add(`follower ${[...tables].join()}`));
  owner.watch({ table: "todos" }, (rows) => shown.push(rows.length));

  const delta = ok(await follower.insert("todos", "r1", { title: "Buy milk" }));

  assert.deepEqual(ok(await follower.get("todos", "r1")), { title: "Buy milk" });
  assert.equal(ok(await follower.query({ table: "todos" })).length, 1);
  assert.equal(follower.pending()[0]?.rowId, "r1");
  assert.equal(follower.status.waiting, 1);
  assert.deepEqual([...told].sort(), ["follower todos", "owner todos"]);
  assert.deepEqual(owner.pending(), follower.pending());
  assert.equal(delta.table, "todos");
  await until(() => shown.at(-1) === 1);

  ok(await owner.insert("todos", "r2", {}));
  await until(() => follower.status.waiting === 2);
  assert.equal(ok(await follower.query({ table: "todos" })).length, 2);
});

test("a transaction's body runs in the tab that called it, and its edits stay together", async () => {
  const gateway = new Gateway();
  const [, , , follower] = await two(new Browsers(gateway.fetch));
  let calls = 0;
  ok(
    await follower.transaction((edits) => {
      calls += 1;
      edits.insert("todos", "r1", { n: 1 });
      edits.update("todos", "r1", { n: 2 });
    }),
  );
  const thrown = follower.transaction(() => {
    throw new RangeError("the app's own");
  });

  await assert.rejects(thrown, RangeError);
  assert.equal(calls, 1);
  assert.equal(follower.status.waiting, 2);
  ok(await follower.sync());
  assert.deepEqual(
    gateway.log.map(({ op }) => op),
    ["INSERT", "UPDATE"],
  );
});

test("whatever can be asked is asked of the owner, and refused as there", async () => {
  const [, owner, , follower] = await two();
  assert.equal(codeOf(await follower.update("todos", "r1", {})), "VALIDATION_ERROR");
  assert.equal(codeOf(await follower.retry("nothing")), "NOT_FOUND");
  assert.equal(codeOf(await follower.amend("nothing", {})), "NOT_FOUND");
  assert.equal(codeOf(await follower.insert("t", "r", { f: () => 1 })), "VALIDATION_ERROR");
  assert.equal(codeOf(await follower.sync()), "UNREACHABLE");
  assert.equal(follower.status.lastError?.code, "UNREACHABLE");
  assert.deepEqual(follower.status, owner.status);

  const { deltaId } = (ok(await follower.insert("t", "r", { n: [1] })), follower.pending()[0]!);
  ok(await follower.discard(deltaId));
  assert.equal(ok(await owner.get("t", "r")), null);
  assert.equal(owner.status.waiting, 0);

  const proxy = new Proxy({ n: new Proxy([1], {}) }, {});
  ok(await follower.insert("t", "r", proxy));
  assert.deepEqual(ok(await follower.get("t", "r")), { n: [1] });

  assert.equal(codeOf(await follower.wipe()), "CONFLICT");
  ok(await follower.wipe({ loseEdits: true }));
  assert.equal(ok(await owner.get("t", "r")), null);
  assert.equal(owner.status.waiting + follower.status.waiting, 0);
  ok(await follower.insert("t", "r2", {}));
  await until(() => owner.status.waiting === 1);
});

test("an edit is made once, at whichever step of it the owner dies", async () => {
  for (let step = 1; ; step += 1) {
    const browsers = new Browsers();
    const [first, , second, follower] = await two(browsers);
    first.diesAt = first.steps + step;

    const delta = ok(await follower.insert("todos", "r1", { n: 1 }));

    const [, entries] = await stored(browsers, "outbox");
    const where = `it died at step ${step}`;
    assert.deepEqual(
      entries.map((entry) => (entry as { delta: unknown }).delta),
      [delta],
      where,
    );
    assert.deepEqual(ok(await follower.get("todos", "r1")), { n: 1 }, where);
    assert.equal(follower.pending().length, 1, where);
    ok(await follower.update("todos", "r1", { n: 2 }));
    assert.equal(follower.pending().length, 2, where);
    second.kill();
    if (first.isAlive) {
      assert.ok(step > 10, "an edit has more steps");
      return;
    }
  }
});

test("an edit is made once although the tab that asked becomes the owner in between", async () => {
  for (let step = 1; step < 40; step += 1) {
    const browsers = new Browsers();
    const [first, , second, follower] = await two(browsers);
    const third = browsers.tab();
    const other = await third.open();
    first.diesAt = first.steps + step;
    second.diesAt = second.steps + 2 * step + 20;

    const edits = [follower.insert("todos", "r1", { n: 1 }), other.insert("todos", "r2", { n: 1 })];
    ok(await edits[1]!);

    await until(() => other.pending().filter(({ rowId }) => rowId === "r2").length === 1);
    assert.ok(other.pending().filter(({ rowId }) => rowId === "r1").length <= 1);
    for (const tab of [first, second, third]) tab.kill();
  }
});

test("200 edits from all tabs arrive once each, while owners die and new tabs open", async () => {
  for (let seed = 1; seed <= 5; seed += 1) {
    let state = seed;
    const chance = (below: number): number => {
      state = (state * 48_271) % 0x7fff_ffff;
      return state % below;
    };
    const gateway = new Gateway();
    const browsers = new Browsers(gateway.fetch);
    const tabs: { tab: Tab; client: Client }[] = [];
    const add = async (): Promise<void> => {
      const tab = browsers.tab();
      const client = await tab.open();
      client.connect();
      tabs.push({ tab, client });
    };
    for (let count = 0; count < 4; count += 1) await add();

    const edits: { id: string; tab: Tab; isAnswered: boolean }[] = [];
    let deaths = 0;
    while (edits.length < 200) {
      for (const { tab, client } of [...tabs]) {
        const edit = { id: `r${edits.length}`, tab, isAnswered: false };
        edits.push(edit);
        void client
          .insert("todos", edit.id, { n: edits.length })
          .then((result) => (edit.isAnswered = result.ok));
      }
      const [oldest] = tabs;
      if (chance(4) === 0) oldest!.tab.diesAt ||= oldest!.tab.steps + 1 + chance(200);
      for (let rest = chance(150); rest > 0; rest -= 1) await new Promise(setImmediate);
      if (oldest!.tab.isAlive) continue;
      deaths += 1;
      tabs.shift();
      await add();
    }
    await until(() => edits.every(({ tab, isAnswered }) => !tab.isAlive || isAnswered));
    const last = tabs.at(-1)!.client;
    await until(() => last.status.waiting === 0);

    const ids = gateway.log.map(({ rowId }) => String(rowId));
    const answered = edits.filter(({ isAnswered }) => isAnswered);
    assert.equal(new Set(ids).size, ids.length, `seed ${seed}: an edit arrived twice`);
    assert.deepEqual(
      answered.filter(({ id }) => !ids.includes(id)),
      [],
    );
    assert.ok(deaths > 4 && answered.length > 120, `${deaths} deaths, ${answered.length} answers`);
    await until(async () => ok(await last.query({ table: "todos" })).length === ids.length);
    for (const { tab } of tabs) tab.kill();
  }
});

test("results of requests are kept for as long as they may be repeated", async () => {
  const browsers = new Browsers();
  const [first, , second, follower] = await two(browsers);
  for (let count = 0; count < 50; count += 1) ok(await follower.insert("t", `r${count}`, {}));
  const requests = async (): Promise<unknown[]> =>
    (await stored(browsers, "tabs"))[0].filter(Array.isArray);

  assert.equal((await requests()).length, 1);
  second.kill();
  await browsers.tab().open();
  await until(async () => (await requests()).length === 0, "those of a tab that is gone go");
  assert.ok(first.isAlive);
});

test("the next owner syncs in the background, for whichever tab wants it", async () => {
  const gateway = new Gateway();
  const browsers = new Browsers(gateway.fetch);
  const [first, owner, second, follower] = await two(browsers);
  follower.connect();
  await until(() => owner.status.isConnected && follower.status.isConnected);
  ok(await follower.insert("todos", "r1", {}));
  await until(() => gateway.log.length === 1);

  first.kill();
  ok(await follower.insert("todos", "r2", {}));
  await until(() => gateway.log.length === 2);
  await until(() => follower.status.waiting === 0);
  const third = await browsers.tab().open();
  third.connect();
  follower.disconnect();
  await until(() => third.status.isConnected);
  third.disconnect();
  await until(() => !follower.status.isConnected);
  second.kill();
});

test("an owner that closes hands on to the next tab, and a push under way is not doubled", async () => {
  const gateway = new Gateway();
  const [, owner, , follower] = await two(new Browsers(gateway.fetch));
  ok(await owner.insert("todos", "r1", {}));
  const syncing = owner.sync();
  await until(() => gateway.pushes === 1);
  owner.close();
  assert.equal((await syncing).ok, false);

  assert.equal(codeOf(await owner.insert("todos", "r2", {})), "CLOSED");
  ok(await follower.insert("todos", "r2", {}));
  ok(await follower.sync());
  assert.deepEqual(
    gateway.log.map(({ rowId }) => rowId),
    ["r1", "r2"],
  );
});

test("a tab that closes is answered at once, and leaves nothing behind", async () => {
  const browsers = new Browsers();
  const first = browsers.tab();
  const owner = await first.open();
  for (let mounts = 0; mounts < 1_000; mounts += 1) {
    const opening = first.open();
    if (mounts % 2) (await opening).close();
    else void opening.then((client) => client.close());
  }
  await until(() => browsers.channels.size === 1);

  await until(() => browsers.locks.names().length === 2);
  assert.equal(browsers.locks.waiting(), 0);
  ok(await owner.insert("t", "r", {}));
  const late = await first.open();
  const asked = late.sync();
  late.close();
  assert.equal(codeOf(await asked), "CLOSED");
});

test("an owner that stands still is replaced; it writes nothing afterwards, and goes on", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const gateway = new Gateway();
    const [first, owner, second, follower] = await two(new Browsers(gateway.fetch));
    first.freeze();
    second.document.visibilityState = "hidden";
    const waits = follower.insert("todos", "r1", {});
    const silences = async (count: number): Promise<void> => {
      for (let silence = 0; silence < count; silence += 1) {
        mock.timers.tick(5_000);
        for (let rest = 0; rest < 20; rest += 1) await new Promise(setImmediate);
      }
    };
    await silences(10);
    assert.equal(follower.status.waiting, 0, "a tab in the background takes nothing");

    second.document.visibilityState = "visible";
    await silences(4);
    ok(await waits);
    first.thaw();
    ok(await owner.insert("todos", "r2", {})); // it does not know yet

    assert.equal(ok(await follower.query({ table: "todos" })).length, 2);
    await until(() => owner.status.waiting === 2);
    assert.deepEqual(owner.pending(), follower.pending());
    ok(await owner.sync());
    assert.equal(gateway.log.length, 2);
  } finally {
    mock.timers.reset();
  }
});

test("a tab that missed what happened reads it again", async () => {
  const [, owner, second, follower] = await two();
  const [channel] = [...second.all.channels].filter((each) => each.tab === second);
  second.all.channels.delete(channel!); // a page that the browser had put aside hears nothing
  ok(await owner.insert("todos", "r1", {}));
  assert.equal(follower.status.waiting, 0);
  second.all.channels.add(channel!);
  let told = 0;
  follower.onChange(() => (told += 1));
  second.document.dispatchEvent(new Event("visibilitychange"));

  await until(() => follower.status.waiting === 1);
  assert.equal(told, 1);
});

// --- releases -------------------------------------------------------------------------------------

test("a tab of another protocol is not misread: it reads, and is told why it cannot write", async () => {
  const browsers = new Browsers();
  const [first, owner, , follower] = await two(browsers);
  await until(() => browsers.messages.length > 2);
  const other = PROTOCOL + 1;
  const speak = browsers.tab().browser.channel!(`lakesync ${NAME}`);
  const heard: { v: number; term?: number }[] = [];
  speak.onmessage = ({ data }) => heard.push(data);

  speak.postMessage({ v: other, asked: { what: "nobody knows" } });
  await until(() => heard.some(({ v, term }) => v === PROTOCOL && term !== undefined));

  first.kill();
  ok(await follower.insert("todos", "r1", {}));
  speak.postMessage({ v: other, term: 99, anything: true });
  await until(async () => codeOf(await follower.insert("todos", "r2", {})) === "UPGRADE_REQUIRED");
  assert.deepEqual(ok(await follower.get("todos", "r1")), {});
  assert.equal(owner.status.waiting, 0);
});

test("a newer release's database is not opened by an older one, which is told to reload", async () => {
  const browsers = new Browsers();
  const [, owner, , follower] = await two(browsers);
  ok(await owner.insert("todos", "r1", {}));
  const newer = await new Promise<IDBDatabase>((resolve) => {
    const opening = browsers.indexedDB.open(NAME, 1_000);
    opening.onsuccess = () => resolve(opening.result);
  });

  assert.equal(codeOf(await owner.insert("todos", "r2", {})), "UPGRADE_REQUIRED");
  assert.equal(codeOf(await follower.insert("todos", "r2", {})), "UPGRADE_REQUIRED");
  assert.equal(codeOf(await follower.get("todos", "r1")), "STORAGE_FAILED");
  await assert.rejects(browsers.tab().open(), { code: "UPGRADE_REQUIRED" });
  assert.deepEqual(browsers.locks.names(), []);
  newer.close();
});

test("an older release's database keeps its edits", async () => {
  const browsers = new Browsers();
  const kept = { delta: { hlc: 5n, table: "t", rowId: "r", op: "DELETE", columns: [] }, code: "" };
  await new Promise<void>((resolve) => {
    const opening = browsers.indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => {
      makeFirstLayout(opening.result);
      opening.transaction!.objectStore("outbox").put(kept, "0000000000000005");
    };
    opening.onsuccess = () => {
      opening.result.close();
      resolve();
    };
  });
  browsers.localStorage.setItem(NAME, "1 0");

  const client = await browsers.tab().open();
  assert.equal(client.status.waiting, 1);
  assert.equal(client.status.lost, 0);
  ok(await client.insert("todos", "r1", {}));
});

// --- browsers without -----------------------------------------------------------------------------

test("without BroadcastChannel the second tab is answered OPEN_IN_ANOTHER_TAB", async () => {
  const browsers = new Browsers();
  const first = browsers.tab({ channel: undefined });
  const client = await first.open();
  await assert.rejects(browsers.tab({ channel: undefined }).open(), {
    code: "OPEN_IN_ANOTHER_TAB",
  });

  ok(await client.insert("todos", "r1", {}));
  client.close();
  const next = await browsers.tab({ channel: undefined }).open();
  assert.equal(next.status.waiting, 1);
});

test("without Web Locks the tab that was opened last has the client, and others write nothing", async () => {
  const browsers = new Browsers();
  const first = await browsers.tab({ locks: undefined }).open();
  ok(await first.insert("todos", "r1", {}));
  const second = await browsers.tab({ locks: undefined }).open();

  assert.equal(codeOf(await first.insert("todos", "r2", {})), "OPEN_IN_ANOTHER_TAB");
  assert.equal(codeOf(await first.wipe({ loseEdits: true })), "OPEN_IN_ANOTHER_TAB");
  ok(await second.insert("todos", "r3", {}));
  assert.equal(second.status.waiting, 2);
});

test("where storage is blocked everything is in memory, and is said to be", async () => {
  const browsers = new Browsers();
  const blocked = {
    open: () => {
      throw new DOMException("blocked", "SecurityError");
    },
  } as unknown as IDBFactory;
  for (const indexedDB of [undefined, blocked]) {
    const client = await browsers.tab({ indexedDB }).open();
    ok(await client.insert("todos", "r1", { n: 1 }));
    assert.deepEqual(ok(await client.get("todos", "r1")), { n: 1 });
    assert.equal(client.status.isDurable, false);
    client.close();
    assert.equal(codeOf(await client.insert("todos", "r1", {})), "CLOSED");
  }
});

// --- status ---------------------------------------------------------------------------------------

test("edits that the browser removed are told until the app says that its user knows", async () => {
  const browsers = new Browsers();
  const [first, owner, second] = await two(browsers);
  for (const id of ["r1", "r2"]) ok(await owner.insert("todos", id, {}));
  for (const tab of [first, second]) tab.kill();
  const removed = browsers.indexedDB.deleteDatabase(NAME);
  await new Promise((resolve) => (removed.onsuccess = resolve));

  for (let reloads = 0; reloads < 2; reloads += 1) {
    const [one, client, other, follower] = await two(browsers);
    assert.equal(client.status.lost, 2);
    await until(() => follower.status.lost === 2);
    for (const tab of [one, other]) tab.kill();
  }
  const [one, client, other, follower] = await two(browsers);
  ok(await follower.forgetLost());
  assert.equal(client.status.lost, 0);
  for (const tab of [one, other]) tab.kill();
  assert.equal((await browsers.tab().open()).status.lost, 0);
});

test("the browser is asked to keep the data, and its answer is told", async () => {
  const browsers = new Browsers();
  const client = await browsers.tab().open();
  await until(() => client.status.isPersisted);

  const another = await browsers.tab().open({ persist: false });
  await until(() => another.status.waiting === 0);
  assert.equal(another.status.isPersisted, false);
});

test("a listener is told of each change of the status, and sees the same object until then", async () => {
  const gateway = new Gateway();
  const [, owner, , follower] = await two(new Browsers(gateway.fetch));
  await until(() => follower.status.isPersisted);
  const seen: Status[] = [];
  const end = follower.onStatus(() => seen.push(follower.status));
  assert.equal(follower.status, follower.status);

  let release: () => void = () => undefined;
  gateway.onRequest = (path) =>
    path === "push" ? new Promise((resolve) => (release = resolve)) : undefined;
  ok(await owner.insert("todos", "r1", {}));
  const syncing = owner.sync();
  await until(() => seen.some(({ isUploading, waiting }) => isUploading && waiting === 1));
  release();
  ok(await syncing);

  await until(() => seen.at(-1)?.waiting === 0 && seen.at(-1)?.hasSynced);
  assert.equal(seen.at(-1)!.isUploading, false);
  assert.ok(seen.at(-1)!.syncedMs > 0);
  end();
});

test("the progress of a first sync is told", async () => {
  const gateway = new Gateway();
  const pages = [
    { hasMore: true, snapshot: "1|a", rowsRead: 1, rowsTotal: 2 },
    { hasMore: false, snapshot: "" },
  ];
  const delta = { op: "INSERT", table: "t", rowId: "r", clientId: "other", hlc: "65536" };
  const browsers = new Browsers(async (url, init) => {
    if (!url.endsWith("/pull")) return gateway.fetch(url, init);
    await gateway.onRequest("pull");
    const page = { deltas: [delta], serverHlc: "1", epoch: "g.1", scope: "*", ...pages.shift() };
    return new Response(JSON.stringify(page));
  });
  const [, owner, , follower] = await two(browsers);
  let release: () => void = () => undefined;
  let pulls = 0;
  gateway.onRequest = () => {
    pulls += 1;
    return pulls === 2 ? new Promise((resolve) => (release = resolve)) : undefined;
  };

  const syncing = owner.sync();
  await until(() => pulls === 2 && follower.status.progress !== null);
  assert.deepEqual(follower.status.progress, { read: 1, total: 2 });
  assert.equal(follower.status.isDownloading, true);
  assert.equal(follower.status.received, 1);
  release();
  ok(await syncing);
  await until(() => !follower.status.isDownloading);
  assert.equal(follower.status.progress, null);
});
