/** How large the entries are that apps load beside the client, as a browser fetches them. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { transformSync } from "esbuild";

/** Bytes of modules as a bundler leaves them, compressed. */
function sizeOf(...modules: string[]): number {
  const texts = modules.map((module) => {
    const text = readFileSync(new URL(`../../src/${module}.ts`, import.meta.url), "utf8");
    return transformSync(text, { loader: "ts", minify: true, format: "esm", target: "es2022" })
      .code;
  });
  return gzipSync(texts.join(""), { level: 9 }).length;
}

test("the hooks of React are at most 2 KB", () => {
  assert.ok(sizeOf("react") <= 2_048, `${sizeOf("react")} bytes`);
});

test("the collections of TanStack DB are at most 4 KB", () => {
  assert.ok(sizeOf("tanstack") <= 4_096, `${sizeOf("tanstack")} bytes`);
});

test("actions are at most 5 KB, with all that they need beside the client", () => {
  const size = sizeOf("actions", "background", "side");
  assert.ok(size <= 5_120, `${size} bytes`);
});
