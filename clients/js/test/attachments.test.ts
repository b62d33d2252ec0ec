/** Attachments: what is added is uploaded, whatever is interrupted; what is fetched is whole. */

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { test } from "node:test";

import "fake-indexeddb/auto";

import { attachmentOf, Attachments } from "../src/attachments.js";
import { Client } from "../src/index.js";
import { errorOf, valueOf } from "./results.js";

type Fields = Record<string, any>;

const PART_BYTES = 16_777_216;
const sha256 = (bytes: Uint8Array): string => createHash("sha256").update(bytes).digest("hex");
let number = 0;

/** A gateway and its store, which take parts only as they were signed; and a network that fails. */
class Gateway {
  readonly files = new Map<string, Buffer[]>();
  readonly parts = new Map<string, Map<number, Buffer>>();
  readonly requests: [method: string, path: string, body: any][] = [];
  /** Called before and after each request; may throw, or answer instead. */
  before: (path: string, body: any) => Response | undefined = () => undefined;
  after: (path: string) => void = () => undefined;

  readonly fetch = async (url: unknown, given: RequestInit = {}): Promise<Response> => {
    const path = (url as string).replace(/^https:\/\/[a-z.]*\/(sync\/g1\/)?/, "");
    const isJson = typeof given.body === "string";
    const body = isJson ? JSON.parse(given.body as string) : given.body;
    this.requests.push([given.method!, path, body]);
    const instead = this.before(path, body);
    if (instead) return instead;
    const answer = this.answer(path, body, new Headers(given.headers));
    this.after(path);
    return answer;
  };

  private answer(path: string, body: any, headers: Headers): Response {
    if (path === "attachments") return Response.json(this.progress(body));
    if (path === "attachments/download") return this.download(body.reference);
    if (path.startsWith("part/")) return this.take(path, body, headers);
    if (path.startsWith("file/")) return this.give(path, headers);
    throw new Error(`no such path: ${path}`);
  }

  private progress({ reference, parts, upload = "u1" }: Fields): object {
    if (this.files.has(reference)) return { stored: true, requests: [], partsStored: 0 };
    const there = this.parts.get(reference) ?? new Map<number, Buffer>();
    this.parts.set(reference, there);
    if (there.size === parts.length) {
      this.files.set(reference, [...there].sort(([one], [other]) => one - other).map(([, bytes]) => bytes)); // prettier-ignore
      return { stored: true, upload, requests: [], partsStored: there.size };
    }
    const requests = parts.flatMap(
      (digest: string, at: number) =>
      there.has(at + 1) ? [] : [{ part: at + 1, url: `https://store.example/part/${at + 1}/${encodeURIComponent(reference)}`, headers: { "x-digest": digest } }], // prettier-ignore
    );
    return { stored: false, upload, requests, partsStored: there.size };
  }

  private take(path: string, body: Uint8Array, headers: Headers): Response {
    const [, part, reference] = path.split("/");
    if (sha256(body) !== headers.get("x-digest")) return refused(400, "BadDigest");
    this.parts.get(decodeURIComponent(reference!))!.set(Number(part), Buffer.from(body));
    return new Response("", { headers: { etag: "e" } });
  }

  private download(reference: string): Response {
    if (!this.files.has(reference)) {
      return Response.json(
        { error: "no", code: "NOT_YET_UPLOADED", requestId: "r" },
        { status: 404 },
      );
    }
    const url = `https://store.example/file/${encodeURIComponent(reference)}`;
    return Response.json({ url, headers: {} });
  }

  private give(path: string, headers: Headers): Response {
    const whole = Buffer.concat(this.files.get(decodeURIComponent(path.split("/")[1]!))!);
    const range = /^bytes=([0-9]+)-([0-9]+)$/.exec(headers.get("range") ?? "");
    const bytes = range ? whole.subarray(Number(range[1]), Number(range[2]) + 1) : whole;
    return new Response(new Uint8Array(bytes), {
      status: range ? 206 : 200,
      headers: { etag: "e" },
    });
  }

  paths(beginning: string): string[] {
    return this.requests.map(([, path]) => path).filter((path) => path.startsWith(beginning));
  }
}

const refused = (status: number, code: string): Response =>
  new Response(`<Error><Code>${code}</Code></Error>`, { status });

const lost = (): never => {
  throw new TypeError("the line broke");
};

interface Opened {
  client: Client;
  attachments: Attachments;
  gateway: Gateway;
  name: string;
}

type Given = Partial<{ gateway: Gateway; name: string; inMemory: boolean }>;

async function opened({
  gateway = new Gateway(),
  name = `attachments ${number++}`,
  inMemory = false,
}: Given = {}): Promise<Opened> {
  const address = { url: "https://gateway.example", gateway: "g1", clientId: "c1", token: "t" };
  const client = await valueOf(Client.open({ ...address, name, inMemory, fetch: gateway.fetch }));
  return { client, attachments: new Attachments(client), gateway, name };
}

const bytesOf = async (blob: Blob): Promise<Buffer> => Buffer.from(await blob.arrayBuffer());

for (const inMemory of [false, true]) {
  test(`a file that was added reaches another device, ${inMemory ? "in memory" : "in IndexedDB"}`, async () => {
    const { client, attachments, gateway } = await opened({ inMemory });
    const content = randomBytes(1_000);
    const reference = await valueOf(attachments.add(new Blob([content], { type: "Image/PNG" })));
    const { key, ...file } = attachmentOf(reference)!;
    assert.deepEqual(file, { digest: sha256(content), sizeBytes: 1_000, mediaType: "image/png" });
    assert.equal(key.length, 32);
    assert.equal((await valueOf(attachments.status(reference)))!.status, "waiting");
    await valueOf(client.insert("todos", "t1", { photo: reference }));
    assert.deepEqual(
      await bytesOf(await valueOf(attachments.get("todos", "t1", "photo"))),
      content,
    );
    await valueOf(attachments.upload());
    await valueOf(attachments.upload());
    assert.equal((await valueOf(attachments.status(reference)))!.status, "kept");
    assert.equal(gateway.paths("part/").length, 1);

    const other = await opened({ gateway, inMemory });
    await valueOf(other.client.insert("todos", "t1", { photos: [{ big: reference }] }));
    assert.equal(await valueOf(other.attachments.local(reference)), null);
    for (let time = 0; time < 2; time += 1) {
      const blob = await valueOf(other.attachments.get("todos", "t1", "photos"));
      assert.deepEqual(await bytesOf(blob), content);
      assert.equal(blob.type, "image/png");
    }
    assert.equal(gateway.paths("file/").length, 1);
    const [asked] = gateway.requests.filter(([, path]) => path === "attachments/download");
    assert.deepEqual(asked![2], { table: "todos", rowId: "t1", column: "photos", reference });
  });
}

test("a long file goes on with the part that did not arrive, up and down, on the next page too", async () => {
  const first = await opened();
  const { gateway, name } = first;
  const content = randomBytes(2 * PART_BYTES + 1_000);
  const reference = await valueOf(first.attachments.add(content));
  const digests = [0, 1, 2].map((part) =>
    sha256(content.subarray(part * PART_BYTES, (part + 1) * PART_BYTES)),
  );
  const whole = Buffer.from(digests.join(""), "hex");
  assert.equal(attachmentOf(reference)!.digest, sha256(whole));
  gateway.before = (path) => (path.startsWith("part/2/") ? lost() : undefined);
  assert.equal((await errorOf(first.attachments.upload())).code, "UNREACHABLE");
  first.attachments.close();
  first.client.close();

  gateway.before = () => undefined;
  const { client, attachments } = await opened({ gateway, name });
  await valueOf(attachments.upload());
  const sent = gateway.paths("part/").map((path) => path[5]);
  assert.deepEqual(sent, ["1", "2", "2", "3"]);
  const asked = gateway.requests.filter(([, path]) => path === "attachments");
  assert.equal(asked.at(-1)![2].upload, "u1");

  await valueOf(client.insert("todos", "t1", { photo: reference }));
  await valueOf(attachments.evict());
  assert.equal(await valueOf(attachments.status(reference)), null);
  let answers = 0;
  gateway.before = (path) => (path.startsWith("file/") && ++answers === 2 ? lost() : undefined);
  assert.equal((await errorOf(attachments.get("todos", "t1", "photo"))).code, "UNREACHABLE");
  const both = [attachments.get("todos", "t1", "photo"), attachments.get("todos", "t1", "photo")];
  for (const each of both) assert.ok((await bytesOf(await valueOf(each))).equals(content));
  assert.equal(answers, 4);
});

test("an empty file is a file", async () => {
  const { client, attachments } = await opened();
  const reference = await valueOf(attachments.add(new Uint8Array()));
  assert.equal(attachmentOf(reference)!.mediaType, "application/octet-stream");
  await valueOf(client.insert("todos", "t1", { photo: reference }));
  await valueOf(attachments.upload());
  await valueOf(attachments.evict());
  assert.equal((await valueOf(attachments.get("todos", "t1", "photo"))).size, 0);
});

test("bytes that are not those of the reference are never given", async () => {
  const { client, attachments, gateway } = await opened();
  const reference = await valueOf(attachments.add(randomBytes(100)));
  await valueOf(client.insert("todos", "t1", { photo: reference }));
  await valueOf(attachments.upload());
  await valueOf(attachments.evict());
  for (const [wrong, code] of [
    [randomBytes(100), "DAMAGED_ON_THE_WAY"],
    [randomBytes(99), "UNREACHABLE"],
  ] as const) {
    const answer = () => new Response(new Uint8Array(wrong), { headers: { etag: "e" } });
    gateway.before = (path) => (path.startsWith("file/") ? answer() : undefined);
    assert.equal((await errorOf(attachments.get("todos", "t1", "photo"))).code, code);
    assert.equal(await valueOf(attachments.local(reference)), null);
  }
  gateway.before = (path) => (path.startsWith("file/") ? new Response("Log in") : undefined);
  assert.equal((await errorOf(attachments.get("todos", "t1", "photo"))).code, "NOT_THE_GATEWAY");
  gateway.before = () => undefined;
  assert.equal((await valueOf(attachments.get("todos", "t1", "photo"))).size, 100);
});

test("a file that its device has not uploaded is told so", async () => {
  const { client, attachments } = await opened();
  const reference = `attachment:${"0".repeat(32)}:${"a".repeat(64)}:7:text/plain`;
  await valueOf(client.insert("todos", "t1", { photo: reference, none: "attachment:0", json: `["${reference}"]` })); // prettier-ignore
  for (const column of ["photo", "json"]) {
    assert.equal((await errorOf(attachments.get("todos", "t1", column))).code, "NOT_YET_UPLOADED");
  }
  for (const [row, column] of [
    ["t1", "none"],
    ["t2", "photo"],
  ] as const) {
    assert.equal((await errorOf(attachments.get("todos", row, column))).code, "NOT_FOUND");
  }
});

test("a cell with several files is asked for one of them", async () => {
  const { client, attachments } = await opened();
  const [one, other] = await Promise.all(
    ["one", "other"].map((text) => valueOf(attachments.add(new Blob([text])))),
  );
  await valueOf(client.insert("todos", "t1", { photos: [one, other, one] }));
  assert.equal((await errorOf(attachments.get("todos", "t1", "photos"))).field, "reference");
  const blob = await valueOf(attachments.get("todos", "t1", "photos", other));
  assert.equal(await blob.text(), "other");
});

test("a file that the gateway refuses waits for the app, and others go on", async () => {
  const { attachments, gateway } = await opened();
  const [one, other] = [
    await valueOf(attachments.add(new Blob(["too large"]))),
    await valueOf(attachments.add(new Blob(["small"]))),
  ];
  const refusal = { error: "too large", code: "BODY_TOO_LARGE", requestId: "r" };
  gateway.before = (path, body) =>
    body?.reference === one ? Response.json(refusal, { status: 413 }) : undefined;
  await valueOf(attachments.upload());
  const [entry, ...more] = await valueOf(attachments.refused());
  assert.deepEqual(more, []);
  assert.deepEqual([entry!.reference, entry!.code, entry!.reason], [one, "BODY_TOO_LARGE", "too large"]); // prettier-ignore
  assert.equal((await valueOf(attachments.status(other)))!.status, "kept");

  gateway.before = () => undefined;
  await valueOf(attachments.retry(one));
  await valueOf(attachments.upload());
  assert.deepEqual(await valueOf(attachments.refused()), []);
  await valueOf(attachments.discard(other));
  assert.equal(await valueOf(attachments.local(other)), null);
  assert.equal((await errorOf(attachments.discard(other))).code, "NOT_FOUND");
});

test("an address that has expired is asked for again, and a busy store is tried later", async () => {
  const { attachments, gateway } = await opened();
  const reference = await valueOf(attachments.add(randomBytes(10)));
  const answers = [
    refused(403, "AccessDenied"),
    refused(503, "SlowDown"),
    refused(400, "BadDigest"),
  ];
  gateway.before = (path) => (path.startsWith("part/") ? answers.shift() : undefined);
  for (const code of ["UNAVAILABLE", "RATE_LIMITED", "DAMAGED_ON_THE_WAY"]) {
    assert.equal((await errorOf(attachments.upload())).code, code);
    assert.equal((await valueOf(attachments.status(reference)))!.status, "waiting");
  }
  const there = [refused(412, "PreconditionFailed")];
  gateway.before = (path) => {
    if (!path.startsWith("part/") || !there.length) return undefined;
    gateway.parts.get(reference)!.set(1, Buffer.alloc(10)); // it was stored, and the answer lost
    return there.shift();
  };
  await valueOf(attachments.upload());
  assert.equal(gateway.paths("part/").length, 4);
});

test("the same content is one attachment, which is uploaded again if it is added again", async () => {
  const { attachments, gateway } = await opened();
  const content = randomBytes(50);
  const reference = await valueOf(attachments.add(content));
  await valueOf(attachments.upload());
  assert.equal(await valueOf(attachments.add(content)), reference);
  assert.notEqual(await valueOf(attachments.add(content, { mediaType: "image/png" })), reference);
  gateway.files.clear();
  gateway.parts.clear();
  await valueOf(attachments.upload());
  assert.equal(gateway.files.size, 2);
});

test("files that were used longest ago are removed, and none that waits", async () => {
  let now = 1_000;
  const gateway = new Gateway();
  const address = { url: "https://gateway.example", gateway: "g1", clientId: "c1", token: "t" };
  const client = await valueOf(Client.open({ ...address, name: "evicted", fetch: gateway.fetch, now: () => now++ })); // prettier-ignore
  const attachments = new Attachments(client);
  const add = (size: number) => valueOf(attachments.add(randomBytes(size)));
  const [one, two, three] = [await add(100), await add(200), await add(300)];
  await valueOf(attachments.upload());
  const waiting = await add(50);
  await valueOf(attachments.local(one));
  assert.equal(await valueOf(attachments.evict(460)), 450);
  const here = await Promise.all([one, two, three, waiting].map(async (each) => !!(await valueOf(attachments.local(each))))); // prettier-ignore
  assert.deepEqual(here, [true, false, true, true]);
  assert.equal(await valueOf(attachments.evict()), 50);
});

test("what is no attachment is refused", async () => {
  const { attachments } = await opened();
  for (const mediaType of ["jpeg", "image/jpeg; q=1", "a/b/c", `a/${"b".repeat(200)}`]) {
    const error = await errorOf(attachments.add(new Blob(["x"]), { mediaType }));
    assert.equal(error.field, "mediaType");
  }
  const digits = ["0".repeat(32), "a".repeat(64)];
  for (const wrong of [
    "",
    "attachment:",
    `attachment:${digits.join(":")}:07:a/b`,
    `attachment:${digits.join(":")}:9999999999:a/b`,
    ` attachment:${digits.join(":")}:7:a/b`,
  ]) {
    // prettier-ignore
    assert.equal(attachmentOf(wrong), null);
    assert.equal((await errorOf(attachments.local(wrong))).field, "reference");
  }
  assert.deepEqual(await valueOf(attachments.pending()), []);
});

test("a client is not wiped while files wait, and takes them with it", async () => {
  const { client, attachments, gateway, name } = await opened();
  const reference = await valueOf(attachments.add(randomBytes(10)));
  assert.match((await errorOf(client.wipe())).message, /not uploaded: 1/);
  await valueOf(client.wipe({ loseEdits: true }));
  const again = await opened({ gateway, name });
  assert.equal(await valueOf(again.attachments.local(reference)), null);
});

test("a connected client uploads by itself, once there is a network", async () => {
  const { client, attachments, gateway } = await opened();
  let isOffline = true;
  gateway.before = (path) => {
    if (isOffline) lost();
    const page = { deltas: [], serverHlc: "0", hasMore: false, epoch: "e1.1" };
    return path === "pull" ? Response.json(page) : undefined;
  };
  const reference = await valueOf(attachments.add(randomBytes(10)));
  client.connect();
  await new Promise((done) => setTimeout(done, 150));
  isOffline = false;
  for (let time = 0; time < 100 && !gateway.files.size; time += 1) {
    await new Promise((done) => setTimeout(done, 50));
  }
  assert.deepEqual([...gateway.files.keys()], [reference]);
  client.close();
  attachments.close();
});
