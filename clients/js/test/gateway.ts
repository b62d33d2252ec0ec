/** A gateway that accepts or refuses each edit: for tests of what is above the client. */

import { Client } from "../src/index.js";
import { max } from "../src/stamp.js";

/** Why an edit is refused: its code; nothing if it is accepted. */
export type Refusing = (edit: { table: string; columns: Record<string, unknown> }) => string;

/** Open a client in memory whose gateway refuses what `refusing` says. */
export const openClient = (refusing?: Refusing): Promise<Client> => newGateway(refusing)("c1");

/** A gateway, by what opens clients of it. */
export function newGateway(refusing: Refusing = () => ""): (clientId: string) => Promise<Client> {
  const log: { commit: bigint; delta: any }[] = [];
  let last = 0n;

  const pushed = (deltas: any[]): object => {
    const results: object[] = [];
    deltas.forEach((delta, index) => {
      const columns = Object.fromEntries(
        delta.columns.map((each: any) => [each.column, each.value]),
      );
      const code = refusing({ table: delta.table, columns });
      const error = `refused: ${code}`;
      if (code) results.push({ index, deltaId: delta.deltaId, code, error });
      else
        log.push({
          commit: (last = [last + 1n, BigInt(delta.hlc)].reduce((one, other) => max(one, other))),
          delta,
        });
    });
    const accepted = deltas.length - results.length;
    return { serverHlc: String(last), accepted, results, serverTimeMs: Date.now(), epoch: "e1" };
  };

  const pulled = (since: string): object => {
    const deltas = log.filter(({ commit }) => commit > BigInt(since)).map(({ delta }) => delta);
    return { deltas, serverHlc: String(last), hasMore: false, epoch: "e1" };
  };

  const answers = (path: string, body: any): object => {
    if (path.endsWith("/schema")) return { tables: [] };
    if (path.endsWith("/actions")) return { connectors: { mail: [{ actionType: "send" }] } };
    if (path.endsWith("/action")) return { results: body.actions.map(failed), serverHlc: "1" };
    return path.endsWith("/pull") ? pulled(body.since) : pushed(body.deltas);
  };
  return async (clientId) => {
    const opened = await Client.open({
      url: "https://gateway.example",
      gateway: "g1",
      clientId,
      token: "t",
      inMemory: true,
      fetch: async (url, given) => {
        const body = given?.body ? JSON.parse(given.body as string) : null;
        return Response.json(answers(new URL(url as string).pathname, body));
      },
    });
    if (!opened.ok) throw opened.error;
    return opened.value;
  };
}

const failed = ({ actionId }: { actionId: string }): object => {
  const code = "ACTION_NOT_SUPPORTED";
  return { actionId, code, message: "no such connector", retryable: false };
};

/** How many listen to a client. */
export const listenersOf = (client: Client): number => {
  const { listeners, statusListeners, watches } = client as unknown as Record<string, Set<unknown>>;
  return listeners!.size + statusListeners!.size + watches!.size;
};
