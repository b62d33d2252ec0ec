/** A client in one call, from a configuration as the original's `createClient` takes. */

import { Client, type Result } from "./client.js";
import type { ColumnType } from "./values.js";

export interface CreateClientConfig {
  /** The name of the database in the browser. */
  readonly name: string;
  /** Tables with the types of their columns, which are declared. */
  readonly schemas: readonly {
    readonly table: string;
    readonly columns: readonly { readonly name: string; readonly type: ColumnType }[];
  }[];
  /** One for each device, impossible to guess. */
  readonly clientId: string;
  readonly gateway: {
    readonly url: string;
    readonly gatewayId: string;
    readonly token?: string;
    /** Gets a token, and another one when the gateway refuses it; stands before `token`. */
    readonly getToken?: () => string | Promise<string>;
    readonly fetch?: typeof fetch;
  };
  /** 0: sync only when asked. Else the client syncs in the background, after edits and when it must. */
  readonly autoSyncMs?: number;
  /** `memory`: keep nothing when the page is closed. */
  readonly backend?: "idb" | "memory";
}

/** Open a client, declare its tables, and let it sync in the background. */
export async function createClient(config: CreateClientConfig): Promise<Result<Client>> {
  const { name, clientId, gateway, schemas, autoSyncMs, backend } = config;
  const { url, gatewayId, token = "", getToken, fetch: send } = gateway;
  const opened = await Client.open({
    name,
    clientId,
    url,
    gateway: gatewayId,
    token: getToken ? () => getToken() : token,
    inMemory: backend === "memory",
    ...(send && { fetch: send }),
  });
  if (!opened.ok) return opened;
  for (const { table, columns } of schemas) {
    const types = Object.fromEntries(columns.map((column) => [column.name, column.type]));
    const declared = await opened.value.declare(table, types);
    if (declared.ok) continue;
    opened.value.close();
    return declared;
  }
  if (autoSyncMs !== 0) opened.value.connect();
  return opened;
}
