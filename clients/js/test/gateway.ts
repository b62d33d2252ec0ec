/** A gateway that accepts or refuses each edit, and brings nothing: for tests of what is above it. */

import { Client } from "../src/index.js";

/** Why an edit is refused: its code; nothing if it is accepted. */
export type Refusing = (edit: { table: string; columns: Record<string, unknown> }) => string;

/** Open a client in memory whose gateway refuses what `refusing` says. */
export async function openClient(refusing: Refusing = () => ""): Promise<Client> {
  let last = 0n;
  const answers = (path: string, body: any): object => {
    if (path.endsWith("/schema")) return { tables: [] };
    if (path.endsWith("/pull")) {
      return { deltas: [], serverHlc: String(last), hasMore: false, epoch: "e1" };
    }
    const results: object[] = body.deltas.flatMap((delta: any, index: number) => {
      const columns = Object.fromEntries(
        delta.columns.map((each: any) => [each.column, each.value]),
      );
      const code = refusing({ table: delta.table, columns });
      if (!code) last = BigInt(delta.hlc) > last ? BigInt(delta.hlc) : last;
      return code ? [{ index, deltaId: delta.deltaId, code, error: `refused: ${code}` }] : [];
    });
    const accepted = body.deltas.length - results.length;
    return { serverHlc: String(last), accepted, results, serverTimeMs: Date.now(), epoch: "e1" };
  };
  const opened = await Client.open({
    url: "https://gateway.example",
    gateway: "g1",
    clientId: "c1",
    token: "t",
    inMemory: true,
    fetch: async (url, given) => {
      const body = given?.body ? JSON.parse(given.body as string) : null;
      return Response.json(answers(new URL(url as string).pathname, body));
    },
  });
  if (!opened.ok) throw opened.error;
  return opened.value;
}

/** How many listen to a client. */
export const listenersOf = (client: Client): number => {
  const { listeners, statusListeners, watches } = client as unknown as Record<string, Set<unknown>>;
  return listeners!.size + statusListeners!.size + watches!.size;
};
