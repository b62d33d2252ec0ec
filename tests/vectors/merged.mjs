// Merges the deltas of each case by the reader of examples/, as given and backwards, for
// tests/vectors/test_vectors.py: standard input holds the cases, standard output the rows.

import { readFileSync } from "node:fs";

import { canonical, emptyRow, merge, view } from "../../examples/reader.mjs";

const rowOf = (deltas) => {
  const row = view(deltas.reduce(merge, emptyRow()));
  if (row === null) return null;
  return Object.fromEntries(
    Object.keys(row)
      .sort()
      .map((name) => [name, Buffer.from(canonical(row[name])).toString("base64")]),
  );
};

const cases = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(
  JSON.stringify(cases.map((deltas) => [rowOf(deltas), rowOf([...deltas].reverse())])),
);
