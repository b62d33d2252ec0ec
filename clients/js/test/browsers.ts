/**
 * A browser with tabs that can be killed at any step of what they do.
 *
 * A step is whatever others can notice: a message, a lock, an operation of IndexedDB, a request. A
 * tab that is killed does no further one, its locks are free, and its transactions are aborted,
 * unless they were complete.
 */

import { IDBFactory } from "fake-indexeddb";

import type { Browser } from "../src/browser.js";
import { Client, type Options } from "../src/index.js";

type Task = () => void;
type LockCallback = (lock: object | null) => unknown;

interface LockRequest {
  readonly tab: Tab;
  readonly name: string;
  readonly callback: LockCallback;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: Error) => void;
}

const aborted = (): DOMException => new DOMException("the request was aborted", "AbortError");
const isDead = (): DOMException => new DOMException("the tab is dead", "InvalidStateError");

/** Web Locks, https://w3c.github.io/web-locks: exclusive locks alone. */
class Locks {
  private held: LockRequest[] = [];
  private queue: LockRequest[] = [];

  of(tab: Tab): Browser["locks"] {
    const request = (name: string, ...given: unknown[]) => this.request(tab, name, given);
    return { request: request, query: async () => this.query() };
  }

  names(): string[] {
    return this.held.map(({ name }) => name);
  }

  waiting(): number {
    return this.queue.length;
  }

  private query(): LockManagerSnapshot {
    const shown = ({ name }: LockRequest) => ({ name, mode: "exclusive" as const, clientId: "" });
    return { held: this.held.map(shown), pending: this.queue.map(shown) };
  }

  private request(tab: Tab, name: string, given: unknown[]): Promise<unknown> {
    const callback = given.at(-1) as LockCallback;
    const options = (given.length > 1 ? given[0] : {}) as LockOptions;
    if (!tab.step()) return new Promise(() => undefined);
    return new Promise((resolve, reject) => {
      if (options.signal?.aborted) {
        reject(aborted());
        return;
      }
      const asked: LockRequest = { tab, name, callback, resolve, reject };
      options.signal?.addEventListener("abort", () => {
        if (!this.queue.includes(asked)) return;
        this.queue = this.queue.filter((other) => other !== asked);
        reject(aborted());
      });
      const isFree = ![...this.held, ...this.queue].some((other) => other.name === name);
      if (options.ifAvailable && !isFree) {
        resolve(tab.inTask(() => callback(null)));
      } else if (options.steal) {
        this.steal(name);
        this.grant(asked);
      } else {
        this.queue.push(asked);
        this.next(name);
      }
    });
  }

  private steal(name: string): void {
    const lost = this.held.filter((other) => other.name === name);
    this.held = this.held.filter((other) => other.name !== name);
    for (const { tab, reject } of lost) void tab.inTask(() => reject(aborted()));
  }

  private next(name: string): void {
    if (this.held.some((other) => other.name === name)) return;
    const first = this.queue.find((other) => other.name === name);
    if (!first) return;
    this.queue = this.queue.filter((other) => other !== first);
    this.grant(first);
  }

  private grant(asked: LockRequest): void {
    const { tab, name, callback, resolve, reject } = asked;
    this.held.push(asked);
    const release = (): void => {
      if (!this.held.includes(asked)) return;
      this.held = this.held.filter((other) => other !== asked);
      this.next(name);
    };
    void tab
      .inTask(() => callback({ name, mode: "exclusive" }))
      .then(resolve, reject)
      .finally(release);
  }

  kill(tab: Tab): void {
    const names = this.held.filter((each) => each.tab === tab).map(({ name }) => name);
    this.held = this.held.filter((each) => each.tab !== tab);
    this.queue = this.queue.filter((each) => each.tab !== tab);
    for (const name of names) this.next(name);
  }
}

/** One tab. */
export class Tab {
  steps = 0;
  /** Dies at this step; 0 for never. */
  diesAt = 0;
  isAlive = true;
  readonly document = Object.assign<EventTarget, { visibilityState: DocumentVisibilityState }>(
    new EventTarget(),
    { visibilityState: "visible" },
  );
  readonly self = new EventTarget();
  readonly browser: Browser;
  private readonly transactions = new Set<IDBTransaction>();
  private readonly clients: Client[] = [];
  private isFrozen = false;
  private readonly late: Task[] = [];

  constructor(
    readonly all: Browsers,
    without: Partial<Browser> = {},
  ) {
    this.browser = {
      indexedDB: this.guardedFactory(),
      locks: all.locks.of(this),
      channel: (name) => new Channel(this, name) as unknown as BroadcastChannel,
      localStorage: all.localStorage,
      storage: all.storage,
      self: this.self,
      document: this.document,
      ...without,
    };
  }

  /** Do one more thing; false if the tab is dead. */
  step(): boolean {
    if (!this.isAlive) return false;
    this.steps += 1;
    if (this.steps === this.diesAt) this.kill();
    return this.isAlive;
  }

  /** Let something happen in the tab, soon, unless it is dead by then. */
  inTask<T>(task: () => T | Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      setImmediate(() => this.run(() => void Promise.resolve(task()).then(resolve, reject)));
    });
  }

  private run(task: Task): void {
    if (this.isFrozen) this.late.push(task);
    else if (this.step()) task();
  }

  kill(): void {
    this.isAlive = false;
    for (const transaction of this.transactions) {
      try {
        transaction.abort();
      } catch {
        // It was complete.
      }
    }
    this.all.channels.forEach((channel) => channel.tab === this && channel.close());
    this.all.locks.kill(this);
    for (const client of this.clients) client.close(); // which ends its timers, and does nothing else
  }

  /** Let it stand still: what it waits for comes later. */
  freeze(): void {
    this.isFrozen = true;
  }

  thaw(): void {
    this.isFrozen = false;
    for (const task of this.late.splice(0)) this.run(task);
  }

  async open(options: Partial<Options> = {}): Promise<Client> {
    const given = { ...this.all.options, fetch: this.fetch, ...options };
    const result = await Client.open(given, this.browser);
    if (!result.ok) throw result.error;
    if (this.isAlive) this.clients.push(result.value);
    else result.value.close();
    return result.value;
  }

  readonly fetch = async (input: unknown, init?: RequestInit): Promise<Response> => {
    if (!this.step()) return new Promise(() => undefined);
    const answer = await this.all.fetch(String(input), init);
    return this.inTask(() => answer);
  };

  // --- IndexedDB ----------------------------------------------------------------------------------

  private guardedFactory(): IDBFactory {
    const open = (name: string, version?: number): IDBOpenDBRequest => {
      const opening = this.all.indexedDB.open(name, version);
      opening.addEventListener("success", () => this.guardDatabase(opening.result));
      return this.guardEvents(opening, ["success", "error"]);
    };
    const deleteDatabase = (name: string) => this.all.indexedDB.deleteDatabase(name);
    return { open, deleteDatabase } as unknown as IDBFactory;
  }

  private guardDatabase(database: IDBDatabase): void {
    const begin = database.transaction.bind(database);
    database.transaction = (...given) => {
      if (!this.step()) throw isDead();
      const transaction = this.guardEvents(begin(...given), ["complete", "abort"]);
      this.transactions.add(transaction);
      const objectStore = transaction.objectStore.bind(transaction);
      transaction.objectStore = (name) => this.guarded(objectStore(name));
      return transaction;
    };
  }

  /** An object of IndexedDB, each of whose operations is a step. */
  private guarded<T extends object>(target: T): T {
    if ("readyState" in target) return this.guardEvents(target, ["success", "error"]);
    return new Proxy(target, {
      get: (of, name) => {
        const value: unknown = Reflect.get(of, name, of);
        if (typeof value !== "function") return value;
        return (...given: unknown[]) => {
          if (!this.step()) throw isDead();
          const result: unknown = value.apply(of, given);
          return typeof result === "object" && result ? this.guarded(result) : result;
        };
      },
    });
  }

  /** Let events come only to a tab that is alive: each is a step. */
  private guardEvents<T extends object>(target: T, names: string[]): T {
    for (const name of names) {
      let handler: ((event: Event) => void) | null = null;
      Object.defineProperty(target, `on${name}`, {
        get: () => (event: Event) => this.run(() => handler?.call(target, event)),
        set: (given: typeof handler) => (handler = given),
      });
    }
    return target;
  }
}

/** `BroadcastChannel`: what is posted is cloned, and comes in order. */
class Channel {
  onmessage: ((event: MessageEvent) => void) | null = null;

  constructor(
    readonly tab: Tab,
    readonly name: string,
  ) {
    tab.all.channels.add(this);
  }

  postMessage(data: unknown): void {
    const clone: unknown = structuredClone(data);
    if (!this.tab.step()) return;
    const { channels, messages } = this.tab.all;
    messages.push(clone);
    for (const other of channels) {
      if (other === this || other.name !== this.name) continue;
      void other.tab.inTask(() => {
        if (channels.has(other)) other.onmessage?.({ data: clone } as MessageEvent);
      });
    }
  }

  close(): void {
    this.tab.all.channels.delete(this);
  }
}

/** A browser, in which tabs are opened. */
export class Browsers {
  readonly indexedDB = new IDBFactory();
  readonly locks = new Locks();
  readonly channels = new Set<Channel>();
  /** Everything that was ever posted. */
  readonly messages: unknown[] = [];
  private readonly texts = new Map<string, string>();
  readonly localStorage: NonNullable<Browser["localStorage"]> = {
    getItem: (name) => this.texts.get(name) ?? null,
    setItem: (name, text) => void this.texts.set(name, text),
  };
  readonly storage = { persist: async () => true, persisted: async () => false };
  readonly options: Options = {
    url: "https://gateway.example",
    gateway: "test",
    clientId: "browser",
    token: "token",
  };

  constructor(
    readonly fetch: (url: string, init?: RequestInit) => Promise<Response> = () =>
      Promise.reject(new TypeError("there is no network")),
  ) {}

  tab(without?: Partial<Browser>): Tab {
    const tab = new Tab(this, without);
    tabs.push(tab);
    return tab;
  }
}

const tabs: Tab[] = [];

/** End all tabs of all browsers. */
export const endAll = (): void => tabs.splice(0).forEach((tab) => tab.isAlive && tab.kill());

/** Wait until something holds. */
export async function until(holds: () => unknown, what = holds.toString()): Promise<void> {
  for (let tries = 0; tries < 2_000; tries += 1) {
    if (await holds()) return;
    await new Promise((resolve) => setImmediate(resolve));
    if (tries > 500) await new Promise((resolve) => setTimeout(resolve, 2));
  }
  throw new Error(`it does not come to hold: ${what}`);
}
