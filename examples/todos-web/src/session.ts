/** Who uses this window, and the client of that person on this device. */

import { Client, LakeSyncError } from "@lakesync/client";
import { Attachments } from "@lakesync/client/attachments";

export interface Person {
  /** Their id in tokens, and in the column `keeper`. */
  readonly id: string;
  readonly name: string;
  readonly token: string;
}

/** What `/config.json` says: where the gateway is, and who may sign in to this demo. */
export interface Config {
  readonly url: string;
  readonly socketUrl?: string;
  readonly gateway: string;
  readonly people: readonly Person[];
}

export type Loaded<T> =
  | { readonly state: "loading" }
  | { readonly state: "ready"; readonly value: T }
  | { readonly state: "failed"; readonly reason: string };

export async function readConfig(): Promise<Config> {
  const answer = await fetch("./config.json", { cache: "no-store" });
  if (!answer.ok) throw new Error(`config.json: ${answer.status}`);
  return (await answer.json()) as Config;
}

/**
 * The id of this device for a person; the person's id is its beginning, so that a conflict can say
 * who wrote the other value.
 */
function clientIdOf(gateway: string, person: Person): string {
  const key = `tandem ${gateway} ${person.id}`;
  const fresh = `${person.id}-${crypto.randomUUID()}`;
  try {
    const known = localStorage.getItem(key);
    if (!known) localStorage.setItem(key, fresh);
    return known ?? fresh;
  } catch {
    return fresh; // storage is blocked: the client is in memory too
  }
}

/** Who wrote something, by the id of the client that did. */
export const authorOf = (clientId: string, people: readonly Person[]): Person | undefined =>
  people.find(({ id }) => clientId.startsWith(`${id}-`));

/** A client, and the files beside its rows. */
export interface Opened {
  readonly client: Client;
  readonly photos: Attachments;
}

export async function openClient(config: Config, person: Person): Promise<Opened> {
  const opened = await Client.open({
    url: config.url,
    ...(config.socketUrl && { socketUrl: config.socketUrl }),
    gateway: config.gateway,
    clientId: clientIdOf(config.gateway, person),
    token: person.token,
  });
  if (!opened.ok) throw opened.error;
  const client = opened.value;
  const photos = new Attachments(client);
  client.connect();
  return { client, photos };
}

export function close({ client, photos }: Opened): void {
  photos.close();
  client.close();
}

/** What a person is told of an error that ends everything. */
export function sentenceOf(error: unknown): string {
  if (!(error instanceof LakeSyncError))
    return error instanceof Error ? error.message : String(error);
  switch (error.code) {
    case "OPEN_IN_ANOTHER_TAB":
      return "Another tab of this browser has these lists open. Close it, or use another browser.";
    case "STORAGE_FULL":
      return "This browser has no room left for the lists. Make some room, then reload.";
    default:
      return error.message;
  }
}
