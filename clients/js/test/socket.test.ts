/** The WebSocket beside the requests: what is heard, and how it stays open. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { afterEach, beforeEach, mock, test } from "node:test";

import "fake-indexeddb/auto";

import { fault } from "../src/errors.js";
import type { Page } from "../src/messages.js";
import { readPage } from "../src/messages.js";
import { keepOpen, readFrame, type Socket } from "../src/socket.js";
import { Browsers, endAll, until } from "./browsers.js";
import { Gateway } from "./fakegateway.js";
import { FakeSocket, WebSocketOf } from "./sockets.js";

const URL_ = "wss://gateway.example/live";
const page = { deltas: [], serverHlc: "2", hasMore: false, epoch: "g.1", scope: "*" };
const broadcast = { tag: 3, body: { ...page, first: "2", previous: "1" } };

const settled = async (): Promise<void> => {
  for (let rest = 0; rest < 20; rest += 1) await new Promise(setImmediate);
};

/** Let time pass. */
const pass = async (ms: number): Promise<void> => {
  await settled();
  mock.timers.tick(ms);
  await settled();
};

/** A socket, and what it told. */
async function listening(): Promise<{
  socket: Socket;
  told: string[];
  pages: Page[];
  answer: { then: "done" | "wake" | "later"; token: () => string };
}> {
  const told: string[] = [];
  const pages: Page[] = [];
  const answer = { then: "done" as "done" | "wake" | "later", token: () => "t" };
  const socket = keepOpen(
    URL_,
    "a b",
    {
      token: async (isRefused) => {
        if (isRefused) told.push("renewed");
        return answer.token();
      },
      hear: async (each) => {
        pages.push(each);
        return answer.then;
      },
      wake: () => told.push("wake"),
      onOpen: (isOpen, reason) => told.push(isOpen ? "open" : `closed: ${reason}`),
    },
    WebSocketOf,
  );
  await settled();
  return { socket, told, pages, answer };
}

/** The same, once it is open. */
async function opened(): ReturnType<typeof listening> {
  const all = await listening();
  FakeSocket.last.accept();
  await settled();
  assert.deepEqual(all.told.splice(0), ["open", "wake"]);
  return all;
}

beforeEach(() => {
  FakeSocket.all = [];
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(Math, "random", () => 0.5);
});
afterEach(() => {
  endAll();
  mock.reset();
  mock.timers.reset();
});

test("the token is a sub-protocol, the client is in the address, and what was missed is pulled", async () => {
  const { told } = await listening();
  const [socket] = FakeSocket.all;

  assert.equal(socket!.url, `${URL_}?clientId=a%20b`);
  assert.deepEqual(socket!.protocols, ["lakesync.v1.json", "bearer.t"]);
  assert.deepEqual(told, []);
  socket!.accept();
  await settled();
  assert.deepEqual(told, ["open", "wake"]);
});

test("a broadcast is heard, and what does not fit is pulled", async () => {
  const { told, pages, answer } = await opened();
  FakeSocket.last.receive(broadcast);
  await settled();
  assert.equal(pages[0]!.first, 2n);
  assert.equal(pages[0]!.previous, 1n);
  assert.deepEqual(told, []);

  answer.then = "wake";
  FakeSocket.last.receive({ tag: 3, body: { ...page, hasMore: true } });
  await settled();
  assert.deepEqual(told, ["wake"]);
  assert.equal(pages[1]!.previous, null);
});

test("what other rules show is read again at a random time, unless it was before", async () => {
  const { told, answer } = await opened();
  answer.then = "later";
  FakeSocket.last.receive(broadcast);
  await pass(10_000);
  FakeSocket.last.receive(broadcast);
  await pass(4_999);
  assert.deepEqual(told, []);
  await pass(1);
  assert.deepEqual(told, ["wake"]);

  FakeSocket.last.receive(broadcast);
  await settled();
  answer.then = "done";
  FakeSocket.last.receive(broadcast);
  await pass(30_000);
  assert.deepEqual(told, ["wake"]);
});

test("frames that say nothing are ignored, and junk closes the connection", async () => {
  const { told, pages } = await opened();
  for (const nothing of ["Bw==", { tag: 7 }, { message: "busy" }, { tag: 2, body: page }]) {
    FakeSocket.last.receive(nothing);
  }
  await settled();
  assert.deepEqual(told, []);
  const junk: (string | object)[] = [
    "no JSON",
    "[]",
    new Uint8Array(1).buffer,
    { tag: 9 },
    { tag: 3, body: { deltas: 1 } },
    '{"tag": 3, "body": {"deltas": [], "serverHlc": 9007199254740993}}',
  ];
  for (const each of junk) {
    if (each instanceof ArrayBuffer) FakeSocket.last.onmessage?.({ data: each });
    else FakeSocket.last.receive(each === "[]" ? '{"tag": []}' : each);
    await settled();
    assert.ok(FakeSocket.last.isClosed, JSON.stringify(each));
    assert.match(told.splice(0).join(), /^closed: wss.*is not the gateway/);
    await pass(15_000);
    FakeSocket.last.accept();
    await settled();
    assert.deepEqual(told.splice(0), ["open", "wake"]);
  }
  assert.deepEqual(pages, []);
});

test("a silent connection is kept alive, and replaced if it is dead", async () => {
  const { told } = await opened();
  const [first] = FakeSocket.all;
  await pass(472_000);
  assert.deepEqual(first!.sent, []);
  await pass(1_000);
  assert.deepEqual(first!.sent, ['{"action":"ping"}']);
  await pass(39_000);
  first!.receive("Bw==");
  assert.deepEqual(told, []);

  await pass(473_000);
  assert.equal(first!.sent.length, 2);
  assert.deepEqual(told.splice(0), ["wake"], "every second time it is asked what was missed");
  await pass(40_000);
  assert.ok(first!.isClosed);
  assert.match(told.splice(0).join(), /dead/);
  await pass(1_000);
  FakeSocket.last.accept();
  await settled();
  assert.equal(FakeSocket.open.length, 1);
  assert.deepEqual(told, ["open", "wake"]);
});

test("a connection is renewed before it is two hours old, and nothing is missed", async () => {
  const { told, pages } = await opened();
  const [first] = FakeSocket.all;
  for (let passed = 0; passed < 6_840_000; passed += 400_000) {
    await pass(400_000);
    first!.receive("Bw==");
  }
  assert.equal(FakeSocket.all.length, 2);
  assert.ok(!first!.isClosed);
  first!.receive(broadcast);
  await settled();
  assert.equal(pages.length, 1);

  FakeSocket.last.accept();
  await settled();
  assert.ok(first!.isClosed);
  assert.deepEqual(told, ["open", "wake"]);
  first!.receive(broadcast);
  await pass(600_000);
  assert.equal(pages.length, 1);
  assert.deepEqual(first!.sent, []);
});

test("after failures the wait doubles, and a network ends it", async () => {
  const { socket, told } = await listening();
  for (const waitMs of [1_000, 2_000, 4_000]) {
    const before = FakeSocket.all.length;
    FakeSocket.last.drop();
    await settled();
    assert.match(told.splice(0).join(), /closed \(1006\)/);
    await pass(waitMs - 1);
    assert.equal(FakeSocket.all.length, before);
    await pass(1);
    assert.equal(FakeSocket.all.length, before + 1);
  }
  await pass(10_000);
  assert.match(told.splice(0).join(), /does not open/);
  socket.hurry();
  await settled();
  assert.equal(FakeSocket.open.length, 1);

  FakeSocket.last.accept();
  await settled();
  socket.hurry();
  assert.equal(FakeSocket.last.sent.length, 1, "it looks whether it is open");
  await pass(40_000);
  assert.ok(FakeSocket.last.isClosed);
});

test("a refused token is renewed once; who is revoked is not heard again", async () => {
  const { told } = await opened();
  const refuse = (code: string, closes = true): void =>
    FakeSocket.last.receive({ tag: 6, body: { code, error: "no", closes } });
  refuse("AUTH_ERROR");
  await settled();
  FakeSocket.last.drop();
  await pass(5_000);
  assert.equal(told.filter((each) => each === "renewed").length, 1);
  FakeSocket.last.drop();
  await pass(5_000);
  assert.equal(told.filter((each) => each === "renewed").length, 1);

  FakeSocket.last.accept();
  await settled();
  told.length = 0;
  refuse("RATE_LIMITED", false);
  await settled();
  assert.deepEqual(told.splice(0), ["wake"]);
  const before = FakeSocket.all.length;
  refuse("REVOKED");
  await pass(1_000_000);
  assert.equal(FakeSocket.all.length, before);
  assert.deepEqual(FakeSocket.open, []);
});

test("a token that cannot be had, or sent, is a failure like others", async () => {
  const { told, answer } = await listening();
  answer.token = () => {
    throw fault("AUTH_ERROR", "nobody is signed in");
  };
  FakeSocket.last.drop();
  await pass(1_000);
  assert.match(told.join(), /nobody is signed in/);
  answer.token = () => "t2";
  await pass(10_000);
  assert.deepEqual(FakeSocket.last.protocols[1], "bearer.t2");
});

test("nothing happens after it was stopped", async () => {
  for (const isOpen of [false, true]) {
    const { socket, told } = await listening();
    if (isOpen) FakeSocket.last.accept();
    await settled();
    told.length = 0;
    socket.stop();
    FakeSocket.last.accept();
    await pass(10_000);
    const before = FakeSocket.all.length;
    FakeSocket.last.receive(broadcast);
    await pass(10_000_000);
    socket.hurry();
    assert.equal(FakeSocket.all.length, before);
    assert.deepEqual(FakeSocket.open, []);
    assert.deepEqual(told, []);
  }
});

test("frames are read as the vectors say", () => {
  const folder = new URL("../../../../tests/golden/vectors/wire.json", import.meta.url);
  const { cases } = JSON.parse(readFileSync(folder, "utf8")) as { cases: any[] };
  let frames = 0;
  for (const { given, expect } of cases) {
    if (!given.jsonFrame) continue;
    const frame = readFrame(given.jsonFrame);
    const { tag } = JSON.parse(given.jsonFrame);
    if (tag === 3) {
      assert.deepEqual(frame, { page: readPage(JSON.parse(expect.json)) });
    } else if (tag === 6) {
      assert.ok(frame && "error" in frame);
      const { code, message, field, retryAfterS } = frame.error;
      assert.deepEqual(
        { code, error: message, field, retryAfterS, closes: frame.closes },
        {
          code: expect.code,
          error: expect.error,
          field: expect.field,
          retryAfterS: expect.retryAfterS,
          closes: expect.closes,
        },
      );
    } else continue;
    frames += 1;
  }
  assert.ok(frames >= 30, String(frames));
});

// --- a client that listens ------------------------------------------------------------------------

const live = { socketUrl: URL_, WebSocket: WebSocketOf };
const commit = (n: number) => ({
  ...page,
  deltas: [
    {
      op: "INSERT",
      table: "todos",
      rowId: `r${n}`,
      clientId: "other",
      columns: [{ column: "n", value: n }],
      hlc: String(n * 65_536),
      deltaId: `id${n}`,
    },
  ],
  serverHlc: String(n),
});

test("the owner alone listens; every tab shows what it hears, and the next owner goes on", async () => {
  const gateway = new Gateway();
  const browsers = new Browsers(gateway.fetch);
  const [first, second] = [browsers.tab(), browsers.tab()];
  const owner = await first.open(live);
  const follower = await second.open(live);
  follower.connect();
  gateway.log.push(commit(1).deltas[0]!);
  await until(() => FakeSocket.all.length === 1);
  FakeSocket.last.accept();
  await until(() => follower.status.isLive && owner.status.isLive);
  await pass(0);
  await until(() => follower.status.hasSynced);
  const requests: string[] = [];
  gateway.onRequest = (path) => void requests.push(path);

  FakeSocket.last.receive({ tag: 3, body: { ...commit(2), first: "2", previous: "1" } });
  await until(async () => {
    const result = await follower.get("todos", "r2");
    return result.ok && result.value?.n === 2;
  });
  await pass(440_000);
  assert.deepEqual(requests, [], "nothing is polled while it is open");

  FakeSocket.last.receive({ tag: 3, body: { ...commit(4), first: "4", previous: "3" } });
  await settled();
  await pass(0);
  assert.deepEqual(requests.splice(0), ["pull"], "a gap is pulled");

  first.kill();
  await until(() => FakeSocket.all.length === 2);
  assert.equal(follower.status.isLive, false);
  FakeSocket.last.accept();
  await until(() => follower.status.isLive);
  follower.disconnect();
  await until(() => !follower.status.isConnected);
  assert.equal(FakeSocket.last.isClosed, true);
  assert.equal(follower.status.isLive, false);
});

test("while no socket is open the client polls, and status says why", async () => {
  const gateway = new Gateway();
  const browsers = new Browsers(gateway.fetch);
  const client = await browsers.tab().open(live);
  let pulls = 0;
  gateway.onRequest = (path) => void (pulls += Number(path === "pull"));
  client.connect();
  await pass(0);
  await until(() => pulls === 1 && client.status.hasSynced);
  FakeSocket.last.drop();
  await settled();
  assert.match(client.status.socketError!, /wss:.*closed \(1006\)/);
  await pass(10_000);
  await until(() => pulls === 2);
});

test("an edit during a sync is pushed as soon as that has ended", async () => {
  const gateway = new Gateway();
  const browsers = new Browsers(gateway.fetch);
  const client = await browsers.tab().open();
  let release: () => void = () => undefined;
  gateway.onRequest = (path) => {
    if (path === "pull" && !gateway.log.length) return new Promise((done) => (release = done));
  };
  client.connect();
  await pass(0);
  await client.insert("todos", "r1", {});
  await pass(200);
  release();
  await until(() => gateway.log.length === 1);
});

test("edits that do not pause are pushed after a second", async () => {
  const gateway = new Gateway();
  const client = await new Browsers(gateway.fetch).tab().open();
  client.connect();
  await pass(0);
  await until(() => client.status.hasSynced);
  let nowMs = performance.now();
  mock.method(performance, "now", () => nowMs);
  for (let n = 0; n < 20; n += 1) {
    await client.insert("todos", `r${n}`, {});
    nowMs += 100;
    await pass(100);
  }
  await until(() => gateway.log.length > 5);
  assert.ok(gateway.pushes <= 3, String(gateway.pushes));
});
