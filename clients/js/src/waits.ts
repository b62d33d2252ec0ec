/** How long to wait after a failure: random, so that clients spread out. */

import type { LakeSyncError } from "./errors.js";

const BACKOFF_MS_MIN = 1_000;
const BACKOFF_MS_MAX = 300_000;
/** After an answer that is not the gateway's: its user may have logged in since. */
const FOREIGN_MS_MAX = 15_000;

/** `first`, doubled once for each failure, and at most `most`. */
export const doubled = (first: number, most: number, failures: number): number =>
  Math.min(most, first * 2 ** Math.min(failures, 16));

/** The wait after the last of some failures, in milliseconds. */
export function waitAfter(error: LakeSyncError, failures: number): number {
  const most = error.isForeign ? FOREIGN_MS_MAX : BACKOFF_MS_MAX;
  const least = Math.min(error.retryAfterS * 1_000, most);
  const ceiling = doubled(BACKOFF_MS_MIN, most, failures);
  return error.retry === "never"
    ? most / 2
    : Math.max(least, Math.min(most, least + Math.random() * ceiling));
}

/** A time give or take a part of it, by chance. */
export const about = (ms: number, part = 0.1): number => ms * (1 + part * (Math.random() - 0.5));
