/**
 * A value's place among the values of its column.
 *
 * A place is a text: two values are equal if their places are, and stand in the order of their
 * places, compared as JavaScript compares texts. So a query in memory and an index of IndexedDB agree.
 * NULL is first; then what is of the column's type, by what it stands for; then all else, as JSON:
 * booleans, numbers, texts, lists and objects.
 */

import { canonical, parse, type Json } from "./json.js";
import { bytesText, fits, instantOf, integerOf, scaled } from "./values.js";

const NULL = "0";
const OF_TYPE = "1";
const INT64_MIN = -(1n << 63n);
const SIGN = 1n << 63n;

/** The place of a value; of a missing one, that of NULL. */
export function placeOf(type: string | undefined, text: Json | undefined): string {
  if (text === undefined || text === "null") return NULL;
  const typed = type === undefined ? null : typedPlace(type, text);
  if (typed !== null) return OF_TYPE + typed;
  const value = parse(text);
  if (typeof value === "boolean") return value ? "21" : "20";
  if (typeof value === "number") return `3${doublePlace(value)}`;
  return typeof value === "string" ? `4${value}` : `5${text}`;
}

/** The place of a row's id. */
export const placeOfId = (rowId: string): string => placeOf(undefined, canonical(rowId));

/** The place of what is of a type that JSON has no values for; null of all else. */
function typedPlace(type: string, text: Json): string | null {
  switch (type) {
    case "integer": {
      const value = integerOf(text);
      return value === null ? null : (value - INT64_MIN).toString(16).padStart(16, "0");
    }
    case "timestamp": {
      const instant = text.startsWith('"') ? instantOf(parse(text) as string) : null;
      return instant && new Date(instant[0]).toISOString().slice(0, 17) + instant[1];
    }
    case "bytes":
      return fits(type, text) ? bytesText(parse(text) as string) : null;
  }
  return type.startsWith("decimal") ? decimalPlace(type, text) : null;
}

function decimalPlace(type: string, text: Json): string | null {
  const value = scaled(type, text);
  const digits = Number(/[0-9]+/.exec(type)![0]);
  return value === null ? null : String(value + 10n ** BigInt(digits)).padStart(digits + 1, "0");
}

/** The bits of a double, so that their order is that of the numbers. */
function doublePlace(value: number): string {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  const bits = view.getBigUint64(0);
  const ordered = bits & SIGN ? BigInt.asUintN(64, ~bits) : bits | SIGN;
  return ordered.toString(16).padStart(16, "0");
}
