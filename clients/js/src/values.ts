/**
 * Typed values: what a column of a type takes, and what it gives.
 *
 * A value in the client is its canonical JSON. What JSON cannot say is text there: integers beyond
 * 2⁵³, decimals, times, bytes. A typed column takes and gives JavaScript's own values for them; no
 * digit of them passes through a `number`. Laws S1: docs/spec/schema.md; K34: docs/spec/client.md.
 */

import { fault } from "./errors.js";
import { canonical, parse, type Json, type Value } from "./json.js";

/** A column's type, as schemas name it. */
export type ColumnType =
  | "string"
  | "number"
  | "boolean"
  | "json"
  | "null"
  | "integer"
  | "timestamp"
  | "date"
  | "bytes"
  | `decimal(${number},${number})`;

/** What a cell gives: of an integer a BigInt, of bytes a Uint8Array, of all others JSON. */
export type Cell = Value | bigint | Uint8Array;

/** The types of some columns of a table, by their names. */
export type Types = Readonly<Record<string, string>>;

const DECIMAL_DIGITS_MAX = 38;
const PLAIN = new Set([
  "string", "number", "boolean", "json", "null", "integer", "timestamp", "date", "bytes",
]); // prettier-ignore
const DECIMAL = /^decimal\(([0-9]{1,2}),([0-9]{1,2})\)$/;

/** A type without spaces; throws SCHEMA_ERROR for what is none. */
export function checkedType(given: unknown): string {
  const name = String(given);
  const type = name.replaceAll(" ", "");
  const digits = DECIMAL.exec(type)?.slice(1).map(Number);
  const isDecimal =
    digits && digits[0]! >= 1 && digits[0]! <= DECIMAL_DIGITS_MAX && digits[1]! <= digits[0]!;
  if (PLAIN.has(type) || isDecimal) return type;
  throw fault(
    "SCHEMA_ERROR",
    `${name.slice(0, 40)} is not a type: use one of ${[...PLAIN].join(", ")}, decimal(p,s), of ` +
      `${DECIMAL_DIGITS_MAX} digits at most, s of them behind the point`,
    "columns.type",
  );
}

// --- what is of a type ----------------------------------------------------------------------------

const INTEGER = /^(?:0|-?[1-9][0-9]{0,18})$/;
const NUMERAL = /^(-?)([0-9]+)(?:\.([0-9]+))?$/;
const DATE = /^([0-9]{4})-([0-9]{2})-([0-9]{2})$/;
const TIMESTAMP =
  /^([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]((?:[01][0-9]|2[0-3]):[0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))?$/;
const BASE64 = /^(?!=)(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?=*$/;
const MINUTE_MS = 60_000;

/** The text of a JSON string, or the digits of a number. */
const bare = (text: Json): string => (text.startsWith('"') ? (parse(text) as string) : text);

/** Whether a value, other than null, is of a type. */
export function fits(type: string, text: Json): boolean {
  const first = text[0]!;
  switch (type) {
    case "json":
      return true;
    case "null":
      return false;
    case "string":
      return first === '"';
    case "number":
      return first === "-" || (first >= "0" && first <= "9");
    case "boolean":
      return text === "true" || text === "false";
    case "integer":
      return integerOf(text) !== null;
    case "timestamp":
      return first === '"' && instantOf(bare(text)) !== null;
    case "date":
      return first === '"' && dayMs(bare(text)) !== null;
    case "bytes":
      return first === '"' && BASE64.test(bare(text));
  }
  return scaled(type, text) !== null;
}

/** The integer of 64 bits that a value stands for; null if it is another. */
export function integerOf(text: Json): bigint | null {
  const digits = bare(text);
  if (!INTEGER.test(digits)) return null;
  const value = BigInt(digits);
  return BigInt.asIntN(64, value) === value ? value : null;
}

/** A decimal without its point: 1.5 of `decimal(9,2)` is 150; null if the value is another. */
export function scaled(type: string, text: Json): bigint | null {
  const [precision, scale] = DECIMAL.exec(type)!.slice(1).map(Number) as [number, number];
  const parts = NUMERAL.exec(bare(text));
  if (!parts) return null;
  const whole = parts[2]!.replace(/^0+/, "");
  const fraction = (parts[3] ?? "").replace(/0+$/, "");
  if (whole.length > precision - scale || fraction.length > scale) return null;
  return BigInt(`${parts[1]!}0${whole}${fraction.padEnd(scale, "0")}`);
}

/** Midnight of a date, in milliseconds since 1970; null if the text is no date. */
export function dayMs(text: string): number | null {
  const [, year, month, day] = (DATE.exec(text) ?? []).map(Number) as [0, number, number, number];
  if (!year) return null;
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day);
  const isThere = date.getUTCMonth() === month - 1 && date.getUTCDate() === day;
  return isThere ? date.getTime() : null;
}

/** The moment of a timestamp: its minute, and the text of its seconds; null if it is none. */
export function instantOf(text: string): readonly [minuteMs: number, seconds: string] | null {
  const parts = TIMESTAMP.exec(text);
  const day = parts && dayMs(parts[1]!);
  if (!parts || day === null) return null;
  const [, , time, seconds = "00", fraction = "", sign, hours, minutes] = parts;
  const ahead = (Number(hours ?? 0) * 60 + Number(minutes ?? 0)) * (sign === "-" ? -1 : 1);
  const [hour, minute] = time!.split(":").map(Number) as [number, number];
  const at = day + (hour * 60 + minute - ahead) * MINUTE_MS;
  const year = new Date(at).getUTCFullYear(); // of UTC, which stores can hold
  return year >= 1 && year <= 9999 ? [at, `${seconds}.${fraction.padEnd(9, "0")}`] : null;
}

// --- what a cell gives ----------------------------------------------------------------------------

/** The value of a column; one of another type, which others wrote, as it was written. */
export function decoded(type: string | undefined, text: Json): Cell {
  if (text === "null" || type === undefined || !fits(type, text)) return parse(text);
  if (type === "integer") return integerOf(text)!;
  if (type === "bytes") return bytesOf(bare(text));
  return type.startsWith("decimal") ? decimalText(bare(text)) : parse(text);
}

/** The values of a row. */
export const cells = (types: Types, columns: ReadonlyMap<string, Json>): Record<string, Cell> =>
  Object.fromEntries([...columns].map(([name, text]) => [name, decoded(types[name], text)]));

const decimalText = (digits: string): string => digits.replace(/^(-?)0+(?=[0-9])/, "$1");

/** The bytes of base64, each as the character of its number. */
export const bytesText = (base64: string): string => atob(base64.replace(/=+$/, ""));

const bytesOf = (base64: string): Uint8Array =>
  Uint8Array.from(bytesText(base64), (letter) => letter.charCodeAt(0));

const PIECE = 8_192; // arguments of one call

function base64Of(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += PIECE) {
    text += String.fromCharCode(...bytes.subarray(at, at + PIECE));
  }
  return btoa(text);
}

// --- what a cell takes ----------------------------------------------------------------------------

const WANTED: Readonly<Record<string, string>> = {
  string: "text",
  number: "a number",
  boolean: "true or false",
  json: "what JSON can say",
  null: "null",
  integer: "a BigInt of 64 bits, or a whole number within 2^53",
  decimal: 'text such as "19.90", with no more digits',
  timestamp: "a Date, or text such as 2026-05-17T08:00:00Z",
  date: "text such as 2026-05-17: a Date is a moment, and its day depends on where one is",
  bytes: "a Uint8Array, or base64 with its padding",
};

/** What JSON cannot say, with the type of the columns that can. */
const isTyped = (value: unknown): value is bigint | Date | ArrayBuffer | ArrayBufferView =>
  typeof value === "bigint" ||
  value instanceof Date ||
  value instanceof ArrayBuffer ||
  ArrayBuffer.isView(value);

const kindOf = (value: unknown): string =>
  typeof value === "object" && value ? value.constructor.name : typeof value;

/**
 * The canonical JSON of a value for a column; throws SCHEMA_ERROR or VALIDATION_ERROR, which name it.
 *
 * @param isStrict - whether JSON of another type is refused too; else it is left to the gateway
 */
export function encoded(
  column: string,
  type: string | undefined,
  value: unknown,
  isStrict = true,
): Json {
  const given = type === undefined ? value : asJson(type, value);
  if (isTyped(given)) throw misfit(column, type, value);
  let text: Json;
  try {
    text = canonical(given);
  } catch (error) {
    throw renamed(error, column);
  }
  if (type === undefined || !isStrict || given === null) return text;
  const isRounded = type === "integer" && typeof value === "number" && !Number.isSafeInteger(value);
  if (isRounded || !fits(type, text)) throw misfit(column, type, value);
  return text;
}

function asJson(type: string, value: unknown): unknown {
  if (typeof value === "bigint" && (type === "integer" || type.startsWith("decimal"))) {
    const isExact = value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER;
    return isExact && type === "integer" ? Number(value) : fittingText(type, String(value), value);
  }
  if (type === "bytes" && value instanceof ArrayBuffer) return base64Of(new Uint8Array(value));
  if (type === "bytes" && ArrayBuffer.isView(value)) {
    return base64Of(new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
  }
  if (type === "timestamp" && value instanceof Date && !Number.isNaN(value.getTime())) {
    return fittingText(type, value.toISOString(), value);
  }
  return value;
}

/** A value's text if it is of the type; otherwise the value, which is then refused. */
const fittingText = (type: string, text: string, value: unknown): unknown =>
  fits(type, JSON.stringify(text)) ? text : value;

function misfit(column: string, type: string | undefined, value: unknown): Error {
  const kind = kindOf(value);
  if (type === undefined) {
    return fault(
      "VALIDATION_ERROR",
      `a ${kind} is not JSON: declare the column ${column} by a type that takes it, or convert it`,
      column,
    );
  }
  const wanted = WANTED[type.split("(")[0]!]!;
  return fault(
    "SCHEMA_ERROR",
    `the column ${column} is declared ${type}, which this ${kind} is not: give it ${wanted}`,
    column,
  );
}

const renamed = (error: unknown, column: string): unknown =>
  error instanceof Error
    ? fault("VALIDATION_ERROR", `the column ${column}: ${error.message}`, column)
    : error;
