// JSON scalars in another language.
// Input: a JSON array of bytes in hex. Output: for each the canonical text's bytes in hex, or null
// if the bytes are no JSON text of one scalar.
function scalar(hex) {
  try {
    const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    const value = JSON.parse(decoder.decode(Buffer.from(hex, "hex")));
    if (value !== null && typeof value === "object") return null;
    return Buffer.from(JSON.stringify(value)).toString("hex");
  } catch {
    return null;
  }
}

let input = "";
for await (const part of process.stdin.setEncoding("utf8")) input += part;
console.log(JSON.stringify(JSON.parse(input).map(scalar)));
