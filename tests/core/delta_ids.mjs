// Delta ids in another language: what every implementation of docs/spec/identity.md must give.
// Input: a JSON array of {clientId, columns: [{column, value}], hlc, rowId, table}.
// Output: a JSON array of their ids.
import { createHash } from "node:crypto";

// RFC 8785. ECMAScript prints numbers and text as the RFC asks; only the keys must be sorted, by
// UTF-16 code units, which is what sort() does.
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const member = (key) => `${JSON.stringify(key)}:${canonical(value[key])}`;
  return `{${Object.keys(value).sort().map(member).join(",")}}`;
}

function deltaId({ clientId, columns, hlc, rowId, table }) {
  const text = canonical({ clientId, columns, hlc, rowId, table });
  return createHash("sha256").update(text, "utf8").digest("hex");
}

let input = "";
for await (const part of process.stdin.setEncoding("utf8")) input += part;
console.log(JSON.stringify(JSON.parse(input).map(deltaId)));
