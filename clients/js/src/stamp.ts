/**
 * Stamps: 64 bits, 48 of wall-clock milliseconds and 16 of counter, compared as integers.
 *
 * Laws C1-C5: docs/spec/clock.md.
 */

export type Stamp = bigint;

const COUNTER_BITS = 16n;
export const STAMP_MAX: Stamp = (1n << 63n) - 1n;
/** How far a stamp may be ahead of the observer's wall clock. */
export const DRIFT_MS_MAX = 5_000;

/** Pack milliseconds since 1970 into a stamp. */
export const stamp = (wallMs: number): Stamp => BigInt(Math.trunc(wallMs)) << COUNTER_BITS;

/** The milliseconds since 1970 of a stamp. */
export const stampMs = (value: Stamp): number => Number(value >> COUNTER_BITS);

export const DRIFT: Stamp = stamp(DRIFT_MS_MAX);

/** The stamp after another, at a wall clock that may run backwards. */
export const next = (last: Stamp, wallMs: number): Stamp => max(last + 1n, stamp(wallMs));

export const max = (left: Stamp, right: Stamp): Stamp => (left > right ? left : right);
export const min = (left: Stamp, right: Stamp): Stamp => (left < right ? left : right);

/** Whether a stamp is too far ahead of a wall clock to be accepted. */
export const drifts = (value: Stamp, wallMs: number, driftMsMax = DRIFT_MS_MAX): boolean =>
  stampMs(value) - wallMs > driftMsMax;
