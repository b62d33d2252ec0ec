/**
 * JSON values and their canonical text (RFC 8785): equal values have equal texts.
 *
 * A value inside the client is its canonical text, so that equality is equality of texts, and a
 * number never passes through anything that would round it. Laws I1-I3: docs/spec/identity.md.
 */

import { isBroken } from "./bytes.js";
import { fault } from "./errors.js";

/** The canonical text of one JSON value. */
export type Json = string;

export type Value = string | number | boolean | null | Value[] | { [key: string]: Value };

const DEPTH_MAX = 32;

/** The canonical text of a value; throws VALIDATION_ERROR for what is not JSON. */
export const canonical = (value: unknown): Json => write(value, 0);

function write(value: unknown, depth: number): Json {
  switch (typeof value) {
    case "string":
      if (isBroken(value)) throw fault("VALIDATION_ERROR", HALF_A_PAIR);
      return JSON.stringify(value);
    case "number":
      if (!Number.isFinite(value)) throw fault("VALIDATION_ERROR", "NaN and infinity are not JSON");
      return JSON.stringify(value);
    case "boolean":
      return value ? "true" : "false";
    case "object":
      if (value === null) return "null";
      if (depth >= DEPTH_MAX)
        throw fault("VALIDATION_ERROR", `a value nests over ${DEPTH_MAX} levels`);
      if (Array.isArray(value)) return `[${value.map((item) => write(item, depth + 1)).join()}]`;
      if (isPlain(value)) return members(value, depth + 1);
  }
  throw fault("VALIDATION_ERROR", `a ${typeof value} is not JSON: declare the column's type`);
}

function members(value: Record<string, unknown>, depth: number): Json {
  const keys = Object.keys(value).sort(); // by UTF-16 code units, as RFC 8785 § 3.2.3 has it
  return `{${keys.map((key) => `${write(key, depth)}:${write(value[key], depth)}`).join()}}`;
}

export const isPlain = (value: object): value is Record<string, unknown> => {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
};

/** The value of a canonical text. */
export const parse = (text: Json): Value => JSON.parse(text) as Value;

const LONG_INTEGER = /(?:^|[:,[\s])-?[0-9]{16}/;
const TEXT_OR_NUMBER = /"[^"\\]*(?:\\.[^"\\]*)*"|[-0-9][-+.0-9eE]*/g;

/**
 * The value of JSON that somebody else wrote, as `JSON.parse`; throws where that changes an integer.
 *
 * A gateway sends integers beyond 2⁵³ as text, or as the number that a double is.
 */
export function exact(text: string): Value {
  if (LONG_INTEGER.test(text)) {
    for (const [token] of text.matchAll(TEXT_OR_NUMBER)) {
      if (/^-?[0-9]{16,}$/.test(token) && !isKept(token)) {
        throw fault("VALIDATION_ERROR", `${token.slice(0, 40)} is no number: it travels as text`);
      }
    }
  }
  return JSON.parse(text) as Value;
}

const isKept = (digits: string): boolean => {
  const number = Number(digits);
  return String(number) === digits || (isFinite(number) && BigInt(number) === BigInt(digits));
};

/**
 * The canonical text of JSON that somebody else wrote; throws VALIDATION_ERROR.
 *
 * Stricter than `JSON.parse`: no key twice, no integer that a double does not hold digit by digit.
 */
export function recanonical(text: string): Json {
  const reader = new Reader(text);
  const value = reader.value(0);
  reader.end();
  return value;
}

const HALF_A_PAIR = "text holds half of a surrogate pair; send whole characters";
const NUMBER = /-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/y;

const TEXT = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORD = /true|false|null/y;
const SPACE = /[ \t\n\r]*/y;

class Reader {
  private at = 0;

  constructor(private readonly text: string) {}

  value(depth: number): Json {
    this.token(SPACE);
    const first = this.text[this.at];
    let value: Json;
    if (first === "{" || first === "[") {
      if (depth >= DEPTH_MAX) throw this.broken();
      value = first === "{" ? this.object(depth + 1) : this.array(depth + 1);
    } else if (first === '"') {
      value = write(JSON.parse(this.token(TEXT) || this.fail()), depth);
    } else {
      value = this.token(WORD) || this.number();
    }
    this.token(SPACE);
    return value;
  }

  end(): void {
    if (this.at !== this.text.length) throw this.broken();
  }

  private number(): Json {
    const digits = this.token(NUMBER);
    if (!digits) throw this.broken();
    const number = Number(digits);
    const text = canonical(number);
    // An integer that is written as one is kept digit by digit, or refused.
    if (/^-?[0-9]+$/.test(digits) && digits !== "-0" && text !== digits) throw this.broken();
    return text;
  }

  private array(depth: number): Json {
    const items: Json[] = [];
    this.list("]", () => items.push(this.value(depth)));
    return `[${items.join()}]`;
  }

  private object(depth: number): Json {
    const members = new Map<string, Json>();
    this.list("}", () => {
      this.token(SPACE);
      const key = JSON.parse(this.token(TEXT) || this.fail()) as string;
      this.token(SPACE);
      if (this.text[this.at] !== ":" || members.has(key)) throw this.broken();
      this.at += 1;
      members.set(key, this.value(depth));
    });
    const keys = [...members.keys()].sort();
    return `{${keys.map((key) => `${write(key, depth)}:${members.get(key)}`).join()}}`;
  }

  private list(end: string, item: () => void): void {
    this.at += 1;
    this.token(SPACE);
    if (this.text[this.at] === end) {
      this.at += 1;
      return;
    }
    for (;;) {
      item();
      const next = this.text[this.at];
      this.at += 1;
      if (next === end) return;
      if (next !== ",") throw this.broken();
    }
  }

  private token(form: RegExp): string {
    form.lastIndex = this.at;
    const token = form.exec(this.text)?.[0] ?? "";
    this.at += token.length;
    return token;
  }

  private fail(): never {
    throw this.broken();
  }

  private broken(): Error {
    return fault("VALIDATION_ERROR", `not JSON that is exact, at character ${this.at}`);
  }
}
