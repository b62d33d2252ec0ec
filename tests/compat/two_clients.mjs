// The existing HTTP client in miniature, and two of them on one gateway with sync rules.
//
// Nothing but `fetch` and `crypto`. Reads {url, gateway, secret} as JSON from standard input; writes
// what each client holds at the end, or fails with the first thing that is not as it must be.

import { createHash, createHmac } from "node:crypto";
import { readFileSync } from "node:fs";

const { url, gateway, secret } = JSON.parse(readFileSync(0, "utf8"));
const PUSHED_MAX = 100;
const PULLED_MAX = 1000;
const COUNTER_MAX = 0xffffn;

// --- what the client library does -------------------------------------------------------------------

const base64url = (value) => Buffer.from(value).toString("base64url");

function token(sub, claims = {}) {
  const payload = { sub, gw: gateway, exp: Math.floor(Date.now() / 1000) + 600, ...claims };
  const head = base64url(JSON.stringify({ alg: "HS256", typ: "JWT" }));
  const text = `${head}.${base64url(JSON.stringify(payload))}`;
  return `${text}.${createHmac("sha256", secret).update(text).digest("base64url")}`;
}

const replacer = (_key, value) => (typeof value === "bigint" ? value.toString() : value);

function reviver(key, value) {
  if (typeof value !== "string" || !/hlc$/i.test(key)) return value;
  try {
    return BigInt(value);
  } catch {
    return value;
  }
}

class Clock {
  wall = 0n;
  counter = 0n;

  now() {
    const physical = BigInt(Date.now());
    if (physical > this.wall) [this.wall, this.counter] = [physical, 0n];
    else if (this.counter === COUNTER_MAX) [this.wall, this.counter] = [this.wall + 1n, 0n];
    else this.counter += 1n;
    return (this.wall << 16n) | this.counter;
  }
}

function stable(value) {
  if (Array.isArray(value)) return `[${value.map(stable).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${stable(value[name])}`).join(",")}}`;
}

function delta(op, clientId, hlc, table, rowId, values) {
  const columns = Object.entries(values).map(([column, value]) => ({ column, value }));
  const content = stable({ clientId, hlc: hlc.toString(), table, rowId, columns });
  const deltaId = createHash("sha256").update(content).digest("hex");
  return { op, table, rowId, clientId, columns, hlc, deltaId };
}

// The whole row's newer delta wins; columns that only the other has come with it.
function resolved(local, remote) {
  const ours =
    local.hlc !== remote.hlc ? local.hlc > remote.hlc : local.clientId > remote.clientId;
  const [winner, other] = ours ? [local, remote] : [remote, local];
  if (local.op === "DELETE" || remote.op === "DELETE") return winner;
  const merged = new Map(other.columns.map((item) => [item.column, item]));
  for (const item of winner.columns) merged.set(item.column, item);
  const op = local.op === "INSERT" && remote.op === "INSERT" ? "INSERT" : "UPDATE";
  return { ...winner, op, columns: [...merged.values()] };
}

class Client {
  rows = new Map(); // table:rowId to its columns, as SQLite would hold them
  queue = [];
  cursor = 0n;
  clock = new Clock();
  failures = 0;

  constructor(id, claims) {
    this.id = id;
    this.claims = claims;
  }

  // Edits: local first, then the queue.
  insert(table, rowId, values) {
    this.apply({ op: "INSERT", table, rowId, columns: entries(values) });
    this.enqueue("INSERT", table, rowId, values);
  }

  update(table, rowId, values) {
    must(this.rows.has(`${table}:${rowId}`), `${this.id} updates ${rowId}, which it must hold`);
    this.apply({ op: "UPDATE", table, rowId, columns: entries(values) });
    this.enqueue("UPDATE", table, rowId, values);
  }

  delete(table, rowId) {
    must(this.rows.delete(`${table}:${rowId}`), `${this.id} deletes ${rowId}, which it must hold`);
    this.enqueue("DELETE", table, rowId, {});
  }

  enqueue(op, table, rowId, values) {
    this.queue.push(delta(op, this.id, this.clock.now(), table, rowId, values));
  }

  async sync() {
    if (this.cursor === 0n) await this.initialSync();
    await this.pull();
    await this.push();
  }

  async initialSync() {
    const accept = "application/x-lakesync-checkpoint-stream";
    const response = await this.ask("GET", "checkpoint", { Accept: accept });
    if (!response.ok) return;
    const deltas = framesOf(new Uint8Array(await response.arrayBuffer())).flatMap(deltasOf);
    this.applyAll(deltas); // it moves on whether that succeeded or not
    this.cursor = BigInt(response.headers.get("X-Checkpoint-Hlc"));
  }

  async pull() {
    const query = new URLSearchParams({
      since: this.cursor.toString(),
      clientId: this.id,
      limit: PULLED_MAX.toString(),
    });
    const response = await this.ask("GET", `pull?${query}`);
    must(response.ok, `${this.id} pulls: ${response.status} ${await textOf(response)}`);
    const page = JSON.parse(await response.text(), reviver);
    must(typeof page.serverHlc === "bigint", "serverHlc is a decimal string");
    must(typeof page.hasMore === "boolean", "hasMore is true or false");
    if (page.deltas.length > 0 && this.applyAll(page.deltas)) this.cursor = page.serverHlc;
  }

  async push() {
    const sent = this.queue.slice(0, PUSHED_MAX);
    if (sent.length === 0) return;
    const message = { clientId: this.id, deltas: sent, lastSeenHlc: this.clock.now() };
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify(message, replacer);
    const response = await this.ask("POST", "push", headers, body);
    must(response.ok, `${this.id} pushes: ${response.status} ${await textOf(response)}`);
    const receipt = JSON.parse(await response.text(), reviver);
    must(typeof receipt.accepted === "number", "accepted is a number");
    this.queue = this.queue.filter((held) => !sent.includes(held));
    this.cursor = receipt.serverHlc;
  }

  ask(method, path, headers = {}, body = undefined) {
    const authorised = { ...headers, Authorization: `Bearer ${token(this.id, this.claims)}` };
    return fetch(`${url}/sync/${gateway}/${path}`, { method, headers: authorised, body });
  }

  // One transaction: all of a page, or nothing of it.
  applyAll(deltas) {
    const before = [new Map([...this.rows].map(([key, row]) => [key, { ...row }])), [...this.queue]];
    const pending = new Map(this.queue.map((held) => [`${held.table}:${held.rowId}`, held]));
    try {
      for (const remote of deltas) this.meet(remote, pending.get(`${remote.table}:${remote.rowId}`));
      return true;
    } catch {
      [this.rows, this.queue] = before;
      this.failures += 1;
      return false;
    }
  }

  meet(remote, local) {
    if (local === undefined) return this.apply(remote);
    const winner = resolved(local, remote);
    if (winner.clientId !== remote.clientId || winner.hlc !== remote.hlc) return;
    this.apply(winner);
    this.queue = this.queue.filter((held) => held !== local);
  }

  apply({ op, table, rowId, columns }) {
    const key = `${table}:${rowId}`;
    if (op === "DELETE") this.rows.delete(key);
    else if (op === "INSERT" && this.rows.has(key)) throw new Error("UNIQUE constraint failed");
    else if (op === "INSERT") this.rows.set(key, valuesOf(columns));
    else if (this.rows.has(key)) Object.assign(this.rows.get(key), valuesOf(columns));
  }

  // A new process: rows and queue are on disk, the cursor is not.
  restart() {
    this.cursor = 0n;
    this.clock = new Clock();
  }

  get held() {
    return Object.fromEntries([...this.rows].sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}

const entries = (values) => Object.entries(values).map(([column, value]) => ({ column, value }));
const valuesOf = (columns) => Object.fromEntries(columns.map((item) => [item.column, item.value]));
const textOf = (response) => response.clone().text();

// --- checkpoint frames: four bytes of length, then a SyncResponse ------------------------------------

function framesOf(bytes) {
  const found = [];
  let rest = bytes;
  while (rest.length >= 4) {
    const size = new DataView(rest.buffer, rest.byteOffset).getUint32(0, false);
    found.push(rest.slice(4, 4 + size));
    rest = rest.slice(4 + size);
  }
  return found;
}

function fieldsOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const found = new Map();
  let at = 0;
  const varint = () => {
    for (let value = 0, shift = 0; ; shift += 7) {
      const byte = bytes[at++];
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    let value;
    if (tag % 8 === 0) value = varint();
    else if (tag % 8 === 1) (value = view.getBigUint64(at, true)), (at += 8);
    else (value = varint()), (at += value), (value = bytes.slice(at - value, at));
    const number = Math.floor(tag / 8);
    found.set(number, [...(found.get(number) ?? []), value]);
  }
  return found;
}

const OPS = { 1: "INSERT", 2: "UPDATE", 3: "DELETE" };
const text = (fields, number) => new TextDecoder().decode(fields.get(number)?.[0] ?? new Uint8Array());

function deltasOf(frame) {
  return (fieldsOf(frame).get(1) ?? []).map((bytes) => {
    const fields = fieldsOf(bytes);
    const columns = (fields.get(4) ?? []).map((column) => {
      const held = fieldsOf(column);
      return { column: text(held, 1), value: JSON.parse(text(held, 2)) };
    });
    return {
      op: OPS[fields.get(1)[0]],
      table: text(fields, 2),
      rowId: text(fields, 3),
      columns,
      hlc: fields.get(5)[0],
      clientId: text(fields, 6),
      deltaId: text(fields, 7),
    };
  });
}

// --- the story -----------------------------------------------------------------------------------

function must(holds, sentence) {
  if (!holds) throw new Error(sentence);
}

function equal(found, wanted, sentence) {
  const [left, right] = [stable(found), stable(wanted)];
  must(left === right, `${sentence}:\n  is        ${left}\n  should be ${right}`);
}

async function administer(path, body) {
  const response = await fetch(`${url}/v1/admin/${path}/${gateway}`, {
    method: "POST",
    headers: {
      Authorization: `Bearer ${token("admin", { role: "admin" })}`,
      "Content-Type": "application/json",
    },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  must(response.ok && answer.saved === true, `${path}: ${response.status} ${stable(answer)}`);
}

async function rounds(...clients) {
  for (let round = 0; round < 4; round += 1) for (const client of clients) await client.sync();
}

// So that what comes behind has a later stamp, whoever makes it.
const aWhile = () => new Promise((done) => setTimeout(done, 5));
const row = (team, title, state = "open") => ({ team, title, state });
const textColumn = (name) => ({ name, type: "string" });

await administer("schema", {
  table: "todos",
  columns: [textColumn("team"), textColumn("title"), textColumn("state")],
});
await administer("sync-rules", {
  version: 1,
  buckets: [
    {
      name: "my teams",
      tables: ["todos"],
      filters: [{ column: "team", op: "in", value: "jwt:teams" }],
    },
  ],
});

const a = new Client("a", { teams: ["x", "shared"] });
const b = new Client("b", { teams: ["y", "shared"] });

// Each sees its own rows, and those of both.
await a.sync();
await b.sync();
a.insert("todos", "x1", row("x", "a's"));
a.insert("todos", "s1", row("shared", "of both"));
a.insert("todos", "s2", row("shared", "to be deleted"));
b.insert("todos", "y1", row("y", "b's"));
b.insert("todos", "y2", row("y", "to be moved"));
await rounds(a, b);
const shared = { "todos:s1": row("shared", "of both"), "todos:s2": row("shared", "to be deleted") };
equal(a.held, { ...shared, "todos:x1": row("x", "a's") }, "a holds its rows");
equal(
  b.held,
  { ...shared, "todos:y1": row("y", "b's"), "todos:y2": row("y", "to be moved") },
  "b holds its rows",
);

// What b pushes between a's pull and a's push is not skipped.
await a.pull();
b.insert("todos", "s3", row("shared", "in between"));
await b.sync();
a.update("todos", "x1", { title: "a's own" });
await a.push();
await rounds(a, b);
equal(a.held["todos:s3"], row("shared", "in between"), "a has what came in between");

// A row moves from one to the other.
b.update("todos", "y2", { team: "x" });
await rounds(b, a);
must(!("todos:y2" in b.held), "the row that moved is gone from b");
equal(a.held["todos:y2"], row("x", "to be moved"), "the row that moved is whole at a");

// Both edit offline; one deletes.
b.update("todos", "s1", { state: "done" });
b.delete("todos", "s2");
await aWhile();
a.update("todos", "s1", { title: "edited by a" });
await b.sync();
await rounds(a, b);
equal(a.held["todos:s1"], row("shared", "edited by a", "done"), "both edits are at a");
equal(b.held["todos:s1"], row("shared", "edited by a", "done"), "both edits are at b");
must(!("todos:s2" in a.held) && !("todos:s2" in b.held), "what was deleted is gone");

// One column, two edits: the newer one wins, whoever comes first.
a.update("todos", "s3", { title: "older" });
await aWhile();
b.update("todos", "s3", { title: "newer" });
await b.sync();
await rounds(a, b);
equal(a.held["todos:s3"], row("shared", "newer"), "the newer edit is at a");
equal(b.held["todos:s3"], row("shared", "newer"), "the newer edit is at b");

// Another token: a's team is another from now on, and b's rows are its own.
a.claims = { teams: ["y", "shared"] };
await rounds(a, b);
equal(a.held, b.held, "who has the same claims holds the same rows");
must(!("todos:x1" in a.held) && !("todos:y2" in a.held), "the rows of the former team are gone");

// A new process has no cursor, and goes on.
a.restart();
b.restart();
a.insert("todos", "y3", row("y", "after the restart"));
await rounds(a, b);
const wanted = {
  "todos:s1": row("shared", "edited by a", "done"),
  "todos:s3": row("shared", "newer"),
  "todos:y1": row("y", "b's"),
  "todos:y3": row("y", "after the restart"),
};
equal(a.held, wanted, "a holds exactly what it may see");
equal(b.held, wanted, "b holds exactly what it may see");

// So does who begins now.
const c = new Client("c", { teams: ["y", "shared"] });
await rounds(c);
equal(c.held, wanted, "c holds exactly what it may see");
for (const client of [a, b, c]) {
  equal(client.queue, [], `${client.id} has pushed everything`);
  equal(client.failures, 0, `${client.id} could apply every page`);
}

console.log(JSON.stringify({ a: a.held, b: b.held, c: c.held }));
