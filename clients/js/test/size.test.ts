/** How large the client is, and the entries that apps load beside it, as a browser fetches them. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { build } from "esbuild";

const SOURCES = fileURLToPath(new URL("../../src/", import.meta.url));
/** What an app that uses an entry has already: the client's modules, and what is not of this package. */
const CLIENT = ["client", "storage", "errors", "json", "bytes", "http", "stamp"];

/** Kilobytes of an entry as apps ship it, compressed; without the client, unless it is the client. */
async function kilobytesOf(entry: string): Promise<number> {
  const external = ["react", "@tanstack/db"];
  if (entry !== "index") external.push(...CLIENT.map((module) => `./${module}.js`));
  const { outputFiles } = await build({
    entryPoints: [`${SOURCES}${entry}.ts`],
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    external,
    write: false,
  });
  return gzipSync(outputFiles[0]!.contents, { level: 9 }).length / 1_024;
}

const MOST_KB = { index: 30, react: 2, tanstack: 4, actions: 5, attachments: 5 };

for (const [entry, most] of Object.entries(MOST_KB)) {
  test(`the entry ${entry} is at most ${most} KB`, async () => {
    const size = await kilobytesOf(entry);
    assert.ok(size <= most, `${size} KB`);
  });
}
