/** Texts as their UTF-8 bytes: their order, their length, their SHA-256. */

const encoder = new TextEncoder();

export const utf8 = (text: string): Uint8Array => encoder.encode(text);

/** The number of bytes of a text in UTF-8; a half surrogate pair counts as three. */
export function byteLength(text: string): number {
  let length = text.length;
  for (let at = 0; at < text.length; at += 1) {
    const unit = text.charCodeAt(at);
    if (unit < 0x80) continue;
    length += unit < 0x800 ? 1 : 2;
    if (unit >= 0xd800 && unit < 0xdc00 && isLow(text.charCodeAt(at + 1))) {
      at += 1; // a pair: two units, four bytes
    }
  }
  return length;
}

const isLow = (unit: number): boolean => unit >= 0xdc00 && unit < 0xe000;

/** Whether a text has half of a surrogate pair, which UTF-8 cannot express. */
export const isBroken = (text: string): boolean => /\p{Surrogate}/u.test(text);

/** Order texts by their UTF-8 bytes, which is the order of their code points. */
export function compareBytes(left: string, right: string): number {
  const end = Math.min(left.length, right.length);
  for (let at = 0; at < end; at += 1) {
    const one = left.charCodeAt(at);
    const other = right.charCodeAt(at);
    if (one !== other) return rank(one) - rank(other);
  }
  return left.length - right.length;
}

/** A UTF-16 code unit's place in code-point order: surrogates stand for what is above all others. */
const rank = (unit: number): number => (unit >= 0xd800 && unit < 0xe000 ? unit + 0x10000 : unit);

// Hashing must not wait: a transaction of IndexedDB ends where anything else is awaited. So this is
// FIPS 180-4 § 6.2, not `crypto.subtle`.
const ROUND = new Uint32Array(64);
const START = new Uint32Array(8);
for (let number = 2, found = 0; found < 64; number += 1) {
  let isPrime = true;
  for (let factor = 2; factor * factor <= number; factor += 1) isPrime &&= number % factor !== 0;
  if (!isPrime) continue;
  if (found < 8) START[found] = fraction(Math.sqrt(number));
  ROUND[found] = fraction(Math.cbrt(number));
  found += 1;
}

function fraction(root: number): number {
  return (root - Math.floor(root)) * 0x1_0000_0000;
}

/** The SHA-256 of bytes, or of a text's in UTF-8, in lower-case hex. */
export function sha256(content: string | Uint8Array): string {
  const message = typeof content === "string" ? utf8(content) : content;
  const padded = new Uint8Array(((message.length + 72) >> 6) << 6);
  padded.set(message);
  padded[message.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(message.length / 0x2000_0000));
  view.setUint32(padded.length - 4, message.length << 3);
  const hash = START.slice();
  const words = new Uint32Array(64);
  for (let start = 0; start < padded.length; start += 64) {
    for (let at = 0; at < 16; at += 1) words[at] = view.getUint32(start + 4 * at);
    block(hash, words);
  }
  return Array.from(hash, (word) => word.toString(16).padStart(8, "0")).join("");
}

function block(hash: Uint32Array, words: Uint32Array): void {
  for (let at = 16; at < 64; at += 1) {
    const early = words[at - 15]!;
    const late = words[at - 2]!;
    const small = turned(early, 7) ^ turned(early, 18) ^ (early >>> 3);
    const large = turned(late, 17) ^ turned(late, 19) ^ (late >>> 10);
    words[at] = words[at - 16]! + small + words[at - 7]! + large;
  }
  let [a, b, c, d, e, f, g, h] = hash as unknown as Eight;
  for (let at = 0; at < 64; at += 1) {
    const one = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g));
    const first = one + ROUND[at]! + words[at]!;
    const second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    [a, b, c, d, e, f, g, h] = [first + second, a, b, c, d + first, e, f, g].map(whole) as Eight;
  }
  [a, b, c, d, e, f, g, h].forEach((word, at) => (hash[at] = hash[at]! + word));
}

type Eight = [number, number, number, number, number, number, number, number];

const whole = (word: number): number => word | 0;
const turned = (word: number, by: number): number => (word >>> by) | (word << (32 - by));
