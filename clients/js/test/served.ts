/**
 * A client that does what it is told, line by line: for tests against a gateway.
 *
 * Each line of standard input is `[method, ...arguments]`; each of standard output is the answer. What
 * JSON cannot say is `{"$integer": "1"}`, or `{"$bytes": "AAA="}`.
 */

import { createInterface } from "node:readline";

import "fake-indexeddb/auto";

import { Actions } from "../src/actions.js";
import { Attachments } from "../src/attachments.js";
import { Client } from "../src/index.js";

let client: Client | null = null;
/** What is made of the client when it is asked for first. */
const parts: Record<string, object> = {};
const MAKES: Record<string, () => object> = {
  actions: () => new Actions(client!),
  attachments: () => new Attachments(client!),
};

async function answered(method: string, given: unknown[]): Promise<unknown> {
  if (method === "open") {
    const opened = await Client.open(given[0] as Parameters<typeof Client.open>[0]);
    if (opened.ok) client = opened.value;
    return opened.ok ? { ok: true } : opened;
  }
  if (method === "status") return client!.status;
  if (method === "transaction") {
    const edits = given[0] as [string, ...unknown[]][];
    return client!.transaction((to) => {
      for (const [name, ...rest] of edits) (to as any)[name](...rest);
    });
  }

  const [part, name] = method.split(".") as [string, string?];
  if (name) return shown(await ((parts[part] ??= MAKES[part]!()) as any)[name](...given));
  return (client as any)[method](...given);
}

/** A result, with bytes in place of a blob. */
async function shown(result: any): Promise<unknown> {
  const { value } = result;
  if (!(value instanceof Blob)) return result;
  return { ok: true, value: new Uint8Array(await value.arrayBuffer()) };
}

function revived(_: string, value: any): unknown {
  if (typeof value?.$integer === "string") return BigInt(value.$integer);
  return typeof value?.$bytes === "string" ? Buffer.from(value.$bytes, "base64") : value;
}

function replaced(_: string, value: unknown): unknown {
  if (typeof value === "bigint") return { $integer: String(value) };
  if (value instanceof Uint8Array) return { $bytes: Buffer.from(value).toString("base64") };
  return value instanceof Error ? Object.assign({}, value) : value;
}

for await (const line of createInterface({ input: process.stdin })) {
  const [method, ...given] = JSON.parse(line, revived) as [string, ...unknown[]];
  const answer = await answered(method, given);
  const text = JSON.stringify(answer ?? null, replaced);
  process.stdout.write(`${text}\n`);
}
