/** Which rows have just changed without this window: they light up for a moment. */

import type { Client } from "@lakesync/client";
import { useEffect, useRef, useState } from "react";

const FLASH_MS = 2_200;
/** The rows that a first sync brings are no news; nor are those of the moment in which it ends. */
const SETTLES_MS = 600;
/** For how long after an own decision a row's change is taken for its consequence. */
const OWN_MS = 1_500;
const decided = new Map<string, number>();

/** Note that a row changes because of a decision in this window, as a refused edit is discarded. */
export const noteOwn = (rowId: string): void => void decided.set(rowId, performance.now());

const isOwn = (client: Client, rowId: string): boolean =>
  performance.now() - (decided.get(rowId) ?? -Infinity) < OWN_MS ||
  client.pending().some((entry) => entry.rowId === rowId);

/** The ids of rows that another device has just changed; rows that stayed are the same objects. */
export function useFlashes(
  client: Client,
  rows: readonly { readonly id: string }[],
  isReady: boolean,
): ReadonlySet<string> {
  const [flashes, setFlashes] = useState<ReadonlySet<string>>(new Set());
  const [isSettled, setSettled] = useState(false);
  const before = useRef<ReadonlyMap<string, object> | null>(null);

  useEffect(() => {
    if (!isReady) return;
    const timer = setTimeout(() => setSettled(true), SETTLES_MS);
    return () => clearTimeout(timer);
  }, [isReady]);

  useEffect(() => {
    const known = before.current;
    before.current = isSettled ? new Map(rows.map((row) => [row.id, row])) : null;
    if (!known) return;
    const changed = rows.filter((row) => known.get(row.id) !== row && !isOwn(client, row.id));
    if (!changed.length) return;
    const ids = changed.map(({ id }) => id);
    setFlashes((all) => new Set([...all, ...ids]));
    setTimeout(() => {
      setFlashes((all) => new Set([...all].filter((id) => !ids.includes(id))));
    }, FLASH_MS);
  }, [client, rows, isSettled]);
  return flashes;
}
