/** Every vector: what any client must compute. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import "fake-indexeddb/auto";

import { LakeSyncError } from "../src/errors.js";
import { canonical, exact, recanonical } from "../src/json.js";
import { asRead, deltaId, fold, view, type Delta, type State } from "../src/merge.js";
import { drifts, max, next } from "../src/stamp.js";
import { IndexedStorage, MemoryStorage, type Storage } from "../src/storage.js";
import { decoded, encoded, fits } from "../src/values.js";
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
      recanonical(
        new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytesOf(given.json)),
      );
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
    return (
      columns && Object.fromEntries([...columns].sort().map(([name, text]) => [name, base64(text)]))
    );
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

test("a typed column takes and gives what the vectors say", () => {
  for (const { given, expect } of casesOf("values")) {
    const { type } = given;
    const text = bytesOf(given.value).toString();
    const shown = `${type} ${text}`;
    assert.equal(fits(type, text), expect.fits, shown);
    if (!expect.fits) {
      const isGiven = codeOf(() => encoded("c", type, JSON.parse(text)));
      assert.equal(isGiven, text === "null" ? "" : "SCHEMA_ERROR", shown);
      continue;
    }
    const value = decoded(type, text);
    const kind = type.startsWith("decimal") ? "decimal" : type;
    if (kind === "bytes") assert.deepEqual(Buffer.from(value as any), bytesOf(expect.bytes), shown);
    else if (kind === "integer") assert.equal(value, BigInt(expect.text), shown);
    else if (kind === "decimal" || kind === "date") assert.equal(value, expect.text, shown);
    else assert.equal(canonical(value), text, shown);
    const again = encoded("c", type, value);
    assert.deepEqual(decoded(type, again), value, shown);
  }
});

/** What is seen, with its conflicts in one order: those of one page have none. */
const inOrder = (seen: Fields): Fields =>
  seen.conflicts ? { ...seen, conflicts: seen.conflicts.map(sorted).sort() } : seen;

const only = process.env.TRACE;

/** Let all traces happen to clients; returns what was not as it must be. */
async function played(
  open: (place: number) => (device: StorageDevice) => Promise<Storage>,
  which: (events: Fields[]) => boolean = () => true,
): Promise<string[]> {
  const failed: string[] = [];
  for (const [place, { laws, given, expect }] of casesOf("traces").entries()) {
    if (!which(given.events) || (only && Number(only) !== place)) continue;
    const device = await Device.open(given, open(place));
    for (const [at, event] of given.events.entries()) {
      const seen: Fields = await device.do(event);
      const [is, must] = [sorted(inOrder(seen)), sorted(inOrder(expect.seen[at]))];
      if (is === must) continue;
      failed.push(
        `trace ${place} (${laws}), event ${at}: ${sorted(event)}\n  is   ${is}\n  not  ${must}`,
      );
      break;
    }
    device.close();
  }
  return failed;
}

interface StorageDevice {
  clientId: string;
  now: () => number;
}

test("the client in IndexedDB does what each trace says", async () => {
  const failed = await played((place) => (device) => IndexedStorage.open(`trace ${place}`, device));

  assert.deepEqual(failed.slice(0, 3), [], `${failed.length} failed`);
});

test("the client in memory does what traces without a crash say", async () => {
  const lives = (events: Fields[]): boolean => events.every((event) => event.do !== "crash");
  const failed = await played(() => async (device) => new MemoryStorage(device), lives);

  assert.deepEqual(failed.slice(0, 3), [], `${failed.length} failed`);
});

test("every canonical number is read and written as the same text", () => {
  for (const { expect } of casesOf("canonical")) {
    if ("error" in expect) continue;
    const text = bytesOf(expect.canonical).toString();
    assert.equal(canonical(exact(text)), text);
  }
});

test("an integer that a double would change is not read", () => {
  for (const digits of ["9007199254740993", "-9223372036854775807", "1".repeat(400)]) {
    for (const text of [
      digits,
      `[1, ${digits}]`,
      `{"a\\"":${digits}}`,
      `{"a": "\\\\", "b":${digits}}`,
    ]) {
      assert.equal(codeOf(() => exact(` ${text}`)), "VALIDATION_ERROR", text); // prettier-ignore
    }
    const kept = `{"hlc":"${digits}","t":"a, ${digits} \\" :${digits}","n":0.${digits.replace("-", "")}}`;
    assert.equal(JSON.stringify(exact(kept)), JSON.stringify(JSON.parse(kept)));
  }
  assert.equal(exact(" 49262616948214150"), 49262616948214150);
  assert.deepEqual(exact("[9007199254740994]"), [9007199254740994]);
});
