/** `@lakesync/client/sqlite-worker`: the worker that has SQLite, by the official sqlite-wasm. */

import initialise from "@sqlite.org/sqlite-wasm";

import { serve } from "./sqlite-port.js";

const POOL = "lakesync-sql";

serve(globalThis, async () => {
  const sqlite = await initialise();
  try {
    // One tab at a time can have it. What an earlier one left there is removed: it is a copy.
    const pool = await sqlite.installOpfsSAHPoolVfs({
      name: POOL,
      clearOnInit: true,
      preserveOnInitFailure: true,
    });
    return { database: new pool.OpfsSAHPoolDb("/copy.db"), isOnDisk: true };
  } catch {
    return { database: new sqlite.oo1.DB(":memory:"), isOnDisk: false };
  }
});
