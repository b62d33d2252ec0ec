// A client that only reads: it shows the rows of a gateway, and keeps them up to date.
//
//   node examples/reader.mjs https://….amazonaws.com my-gateway TOKEN
//
// Level 1 of docs/clients/writing-a-client.md. Rows are in memory, so each start reads everything.

const WAIT_MS = 2_000;

/** A stamp is a 64-bit integer: a BigInt here, a decimal string on the wire. */
const stamp = (text) => BigInt(text ?? 0);

/** The canonical JSON of a value (RFC 8785), as it decides between two writes at one stamp. */
export const canonical = (value) =>
  Array.isArray(value)
    ? `[${value.map(canonical)}]`
    : value !== null && typeof value === "object"
      ? `{${Object.keys(value)
          .sort()
          .map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`)}}`
      : JSON.stringify(value);

/** Compare texts by their UTF-8 bytes: JavaScript's own order is that of UTF-16. */
const byBytes = (left, right) => Buffer.compare(Buffer.from(left), Buffer.from(right));

/** Whether one write of a column wins against another. */
const wins = (mine, theirs) =>
  theirs === undefined ||
  mine.hlc > theirs.hlc ||
  (mine.hlc === theirs.hlc &&
    (byBytes(mine.clientId, theirs.clientId) ||
      byBytes(canonical(mine.value), canonical(theirs.value))) > 0);

/** Merge a delta into the state of its row. */
export function merge(row, delta) {
  const hlc = stamp(delta.hlc);
  if (delta.op === "DELETE") {
    row.deleted = hlc > row.deleted ? hlc : row.deleted;
  } else {
    if (delta.op === "INSERT" && hlc > row.alive) row.alive = hlc;
    for (const { column, value } of delta.columns) {
      const write = { hlc, clientId: delta.clientId, value };
      if (wins(write, row.columns.get(column))) row.columns.set(column, write);
    }
  }
  if (row.alive <= row.deleted) row.alive = 0n;
  for (const [name, write] of row.columns) {
    if (write.hlc <= row.deleted) row.columns.delete(name);
  }
  return row;
}

export const emptyRow = () => ({ alive: 0n, deleted: 0n, columns: new Map(), old: false });

/** What an app sees of a row; null if there is none. */
export const view = (row) =>
  row.alive || row.columns.size
    ? Object.fromEntries([...row.columns].map(([name, write]) => [name, write.value]))
    : null;

export class Reader {
  constructor(url, gateway, token, ask = fetch) {
    Object.assign(this, { url, gateway, token, ask });
    this.clientId = JSON.parse(Buffer.from(token.split(".")[1], "base64url")).sub;
    this.position = { cursor: "0", epoch: "", scope: "", snapshot: "" };
    this.tables = new Map();
  }

  /** Read to the end; returns how many deltas came. */
  async pull() {
    let count = 0;
    for (;;) {
      const page = await this.page();
      count += page.deltas.length;
      this.apply(page);
      if (!page.hasMore) return count;
    }
  }

  async page() {
    const { cursor, epoch, scope, snapshot } = this.position;
    const isNew = cursor === "0" && !snapshot && !scope;
    const body = { clientId: this.clientId, since: cursor, limit: 1_000, epoch, scope,
      snapshot: isNew ? "begin" : snapshot, removes: true, ownCursor: true };
    const answer = await this.ask(`${this.url}/sync/${this.gateway}/pull`, {
      method: "POST",
      redirect: "error",
      headers: { authorization: `Bearer ${this.token}`, "content-type": "application/json",
        accept: "application/json" },
      body: JSON.stringify(body),
    });
    const fields = await answer.json();
    const isRestored = answer.ok && epoch && fields.epoch !== epoch;
    if (answer.ok && (isNew || !isRestored)) return fields;
    if (isRestored || (!isNew && ["CURSOR_EXPIRED", "INVALID_CURSOR"].includes(fields.code))) {
      this.position = { cursor: "0", epoch: isRestored ? "" : epoch, scope: "", snapshot: "" };
      for (const rows of this.tables.values()) for (const row of rows.values()) row.old = true;
      return this.page();
    }
    throw new Error(`${fields.code}: ${fields.error ?? "not the gateway's answer"}`);
  }

  apply(page) {
    if (page.resync) this.readAgain(page.resync);
    for (const delta of page.deltas) {
      if (!this.tables.has(delta.table)) this.tables.set(delta.table, new Map());
      const rows = this.tables.get(delta.table);
      if (delta.op === "REMOVE") {
        rows.delete(delta.rowId);
        continue;
      }
      const before = rows.get(delta.rowId);
      rows.set(delta.rowId, merge(before && !before.old ? before : emptyRow(), delta));
    }
    const cursor = page.snapshot ? this.position.cursor : page.serverHlc;
    this.position = { cursor, epoch: page.epoch ?? "", scope: page.scope ?? "",
      snapshot: page.snapshot ?? "" };
    if (page.hasMore) return;
    for (const rows of this.tables.values()) {
      for (const [id, row] of rows) if (row.old) rows.delete(id);
    }
  }

  readAgain({ tables, named }) {
    for (const [table, rows] of this.tables) {
      if (tables.includes(table) || (named && !named.includes(table))) {
        for (const row of rows.values()) row.old = true;
      }
    }
  }
}

if (import.meta.url === `file://${process.argv[1]}`) {
  const [, , url, gateway, token] = process.argv;
  if (!token) {
    console.error("usage: node examples/reader.mjs URL GATEWAY TOKEN");
    process.exit(2);
  }
  const reader = new Reader(url.replace(/\/$/, ""), gateway, token);
  for (;;) {
    if (await reader.pull()) {
      for (const [table, rows] of reader.tables) {
        console.log(table, Object.fromEntries([...rows].map(([id, row]) => [id, view(row)])));
      }
    }
    await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
  }
}
