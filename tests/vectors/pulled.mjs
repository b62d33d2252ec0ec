// Reads a gateway by the reader of examples/, for tests/vectors/test_reader.py: one line of
// standard input asks to pull, and one of standard output holds the rows.

import { createInterface } from "node:readline";

import { Reader, view } from "../../examples/reader.mjs";

let reader;
for await (const line of createInterface({ input: process.stdin })) {
  const { url, gateway, token } = JSON.parse(line);
  reader ??= new Reader(url, gateway, token);
  reader.token = token;
  let answer;
  try {
    await reader.pull();
    const rows = (of) => Object.fromEntries([...of].map(([id, row]) => [id, view(row)]));
    answer = Object.fromEntries([...reader.tables].map(([table, of]) => [table, rows(of)]));
  } catch (error) {
    answer = { error: error.message };
  }
  console.log(JSON.stringify(answer));
}
