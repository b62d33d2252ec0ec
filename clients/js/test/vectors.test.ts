/** Every vector: what any client must compute. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { LakeSyncError } from "../src/errors.js";
import { canonical, recanonical } from "../src/json.js";
import { asRead, deltaId, fold, view, type Delta, type State } from "../src/merge.js";
import { drifts, max, next } from "../src/stamp.js";
import { Device, sorted, type Fields } from "./device.js";

const FOLDER = new URL("../../../../tests/golden/vectors/", import.meta.url);

const casesOf = (name: string): Fields[] =>
  JSON.parse(readFileSync(new URL(`${name}.json`, FOLDER), "utf8")).cases;
const base64 = (text: string): string => Buffer.from(text).toString("base64");
const bytesOf = (text: string): Buffer => Buffer.from(text, "base64");

function codeOf(body: () => unknown): string {
  try {
    body();
  } catch (error) {
    if (error instanceof LakeSyncError) return error.code;
    throw error;
  }
  return "";
}

const deltaOf = (fields: Fields): Delta => ({
  ...(fields as Delta),
  hlc: BigInt(fields.hlc),
  columns: fields.columns.map((each: Fields) => [each.column, canonical(each.value)]),
});

test("the clock issues and observes as the vectors say", () => {
  for (const { given, expect } of casesOf("clock")) {
    let last = BigInt(given.last);
    const steps = given.steps.map((step: Fields) => {
      if (step.do === "now") return { hlc: String((last = next(last, step.wallMs))) };
      if (drifts(BigInt(step.hlc), step.wallMs, given.driftMsMax)) return { error: "CLOCK_DRIFT" };
      return { last: String((last = max(last, BigInt(step.hlc)))) };
    });
    assert.deepEqual({ steps, last: String(last) }, expect);
  }
});

test("canonical JSON is that of the vectors", () => {
  for (const { given, expect } of casesOf("canonical")) {
    const read = () =>
      recanonical(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytesOf(given.json)));
    if ("error" in expect) {
      assert.ok(isRefused(read), bytesOf(given.json).toString());
    } else {
      assert.equal(base64(read()), expect.canonical);
    }
  }
});

const isRefused = (read: () => string): boolean => {
  try {
    return codeOf(read) === "VALIDATION_ERROR";
  } catch (error) {
    return error instanceof TypeError; // no UTF-8
  }
};

test("ids of changes are those of the vectors", () => {
  for (const { given, expect } of casesOf("ids")) {
    assert.equal(deltaId(deltaOf(given.delta)), expect.deltaId);
  }
});

test("deltas merge as the vectors say, in any order", () => {
  const row = (state: State) => {
    const columns = view(state);
    return columns && Object.fromEntries([...columns].sort().map(([name, text]) => [name, base64(text)]));
  };
  for (const { given, expect } of casesOf("merge")) {
    const deltas: Delta[] = given.deltas.map(deltaOf);
    for (const order of [deltas, [...deltas].reverse()]) {
      const state = fold(order);
      assert.deepEqual(row(asRead(state, false)), expect.row);
      assert.deepEqual(row(asRead(state, true)), expect.rowWhereDeletesWin);
      assert.equal(String(state.alive), expect.state.alive);
      assert.equal(String(state.deleted), expect.state.deleted);
    }
  }
});

const only = process.env.TRACE;

test("the client does what each trace says", async (context) => {
  const failed: string[] = [];
  for (const [place, { laws, given, expect }] of casesOf("traces").entries()) {
    if (only && Number(only) !== place) continue;
    const device = new Device(given);
    for (const [at, event] of given.events.entries()) {
      let seen: unknown;
      try {
        seen = device.do(event);
      } catch (error) {
        seen = { threw: String((error as Error).stack) };
      }
      if (sorted(seen) === sorted(expect.seen[at])) continue;
      failed.push(`trace ${place} (${laws}), event ${at}: ${sorted(event)}\n  is     ${sorted(seen)}\n  not    ${sorted(expect.seen[at])}`);
      break;
    }
  }
  context.diagnostic(`${failed.length} failed`);
  assert.equal(failed.length, 0, failed.slice(0, Number(process.env.SHOW ?? 3)).join("\n\n"));
});
