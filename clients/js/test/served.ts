/**
 * A client that does what it is told, line by line: for tests against a gateway.
 *
 * Each line of standard input is `[method, ...arguments]`; each of standard output is the answer.
 */

import { createInterface } from "node:readline";

import "fake-indexeddb/auto";

import { Client } from "../src/index.js";

let client: Client | null = null;

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

  return (client as any)[method](...given);
}

for await (const line of createInterface({ input: process.stdin })) {
  const [method, ...given] = JSON.parse(line) as [string, ...unknown[]];
  const answer = await answered(method, given);
  const text = JSON.stringify(answer ?? null, (_, value: unknown) =>
    typeof value === "bigint"
      ? String(value)
      : value instanceof Error
        ? Object.assign({}, value)
        : value,
  );
  process.stdout.write(`${text}\n`);
}
