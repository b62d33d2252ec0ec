/**
 * A database beside the client's own: entries by their keys, and bytes by their names.
 *
 * Only apps that use actions or attachments load it. A change reads all entries and writes some, in
 * one transaction that is durable before it is answered; so tabs may share it. Where the client is in
 * memory, this is too.
 */

import { answered, ended, failed } from "./storage.js";

/** What one change reads and writes. */
export interface Changing<T> {
  /** The entries as they were; those of later keys are behind. */
  readonly items: ReadonlyMap<string, T>;
  /** Write an entry; null removes it. */
  readonly put: (key: string, item: T | null) => void;
  /** Keep bytes under a name; null removes them. */
  readonly keep: (name: string, bytes: Blob | null) => void;
}

const ITEMS = "items";
const BYTES = "bytes";

export class Side<T> {
  private readonly listeners = new Set<() => void>();
  private readonly channel: BroadcastChannel | null;
  private database: Promise<IDBDatabase> | null = null;
  private readonly items = new Map<string, T>();
  private readonly blobs = new Map<string, Blob>();

  constructor(
    private readonly name: string,
    private readonly isDurable: boolean,
  ) {
    this.channel =
      isDurable && "BroadcastChannel" in globalThis ? new BroadcastChannel(name) : null;
    if (!this.channel) return;
    this.channel.onmessage = () => this.tell();
    (this.channel as { unref?: () => void }).unref?.(); // in Node it would keep a process alive
  }

  /** Be told that something has changed, here or in another tab; call what it returns to end it. */
  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private tell(): void {
    for (const listener of this.listeners) listener();
  }

  /** Remove everything. */
  async wipe(): Promise<void> {
    this.items.clear();
    this.blobs.clear();
    const database = await this.database?.catch(() => null);
    this.database = null;
    database?.close();
    if (this.isDurable) await answered(indexedDB.deleteDatabase(this.name));
    this.tell();
  }

  close(): void {
    this.listeners.clear();
    this.channel?.close();
    void this.database?.then((database) => database.close());
  }

  /** Read all entries, and change some; or none, if the body throws. */
  async update<R>(body: (changing: Changing<T>) => R): Promise<R> {
    const items = new Map<string, T | null>();
    const blobs = new Map<string, Blob | null>();
    const changing = (before: ReadonlyMap<string, T>): Changing<T> => ({
      items: before,
      put: (key, item) => items.set(key, item),
      keep: (name, bytes) => blobs.set(name, bytes),
    });
    let result: R;
    if (this.isDurable) {
      result = await this.stored((before) => body(changing(before)), items, blobs);
    } else {
      result = body(changing(new Map(this.items)));
      merge(this.items, items);
      merge(this.blobs, blobs);
    }
    if (items.size || blobs.size) {
      this.channel?.postMessage(null);
      this.tell();
    }
    return result;
  }

  private async stored<R>(
    body: (before: ReadonlyMap<string, T>) => R,
    items: ReadonlyMap<string, T | null>,
    blobs: ReadonlyMap<string, Blob | null>,
  ): Promise<R> {
    const transaction = await this.begun("readwrite");
    const end = ended(transaction);
    end.catch(() => undefined); // the body's own error is the one to tell
    const to = transaction.objectStore(ITEMS);
    let result: R;
    try {
      const [keys, all] = await Promise.all([answered(to.getAllKeys()), answered(to.getAll())]);
      result = body(new Map(keys.map((key, at) => [key as string, all[at] as T])));
      write(to, items);
      write(transaction.objectStore(BYTES), blobs);
    } catch (error) {
      transaction.abort();
      throw error instanceof DOMException ? failed(error) : error;
    }
    await end;
    return result;
  }

  /** The bytes of a name, if they are here. */
  async bytes(name: string): Promise<Blob | undefined> {
    if (!this.isDurable) return this.blobs.get(name);
    const store = (await this.begun("readonly")).objectStore(BYTES);
    return (await answered<unknown>(store.get(name))) as Blob | undefined;
  }

  private async begun(mode: IDBTransactionMode): Promise<IDBTransaction> {
    try {
      const database = await (this.database ??= this.open());
      return database.transaction([ITEMS, BYTES], mode, { durability: "strict" });
    } catch (error) {
      this.database = null; // closed by the browser, or to be wiped
      throw error instanceof DOMException ? failed(error) : error;
    }
  }

  private async open(): Promise<IDBDatabase> {
    const opening = indexedDB.open(this.name, 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore(ITEMS);
      opening.result.createObjectStore(BYTES);
    };
    const database = await answered(opening);
    database.onversionchange = () => {
      this.database = null;
      database.close();
    };
    return database;
  }
}

function merge<V>(target: Map<string, V>, changes: ReadonlyMap<string, V | null>): void {
  for (const [key, value] of changes) {
    if (value === null) target.delete(key);
    else target.set(key, value);
  }
}

function write(to: IDBObjectStore, changes: ReadonlyMap<string, unknown>): void {
  for (const [key, value] of changes) {
    if (value === null) to.delete(key);
    else to.put(value, key);
  }
}
