/**
 * What goes on beside a client's syncs: actions that are sent, attachments that are uploaded.
 *
 * While the client is connected it is tried again after whatever may help: a sync, an edit, a network,
 * its time, and a wait after each failure. One tab does it at a time, though nothing depends on that.
 */

import type { Client } from "./client.js";
import { LakeSyncError } from "./errors.js";
import { Http } from "./http.js";
import { doubled } from "./waits.js";

const SOON_MS = 50;
const WAIT_MS_MIN = 1_000;
const WAIT_MS_MAX = 300_000;

/** A browser's window or worker; Node has neither. */
const listenable = (globalThis as { self?: EventTarget }).self;

export class Background {
  private readonly http: Http;
  private readonly ends: (() => void)[];
  private running: Promise<unknown> = Promise.resolve();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;
  /** Whether nothing waits; unknown at first. */
  private isIdle = false;
  private readonly closing = new AbortController();

  /**
   * @param body - does what can be done now; gives in how many milliseconds more can be, null if never
   * @param othersMs - how long another tab may take, before this one does the same
   */
  constructor(
    private readonly client: Client,
    private readonly what: string,
    changes: { onChange(listener: () => void): () => void },
    private readonly body: () => Promise<number | null>,
    private readonly othersMs: number,
  ) {
    this.http = new Http(client.inside.address);
    listenable?.addEventListener("online", this.hurry);
    this.ends = [
      client.onStatus(() => this.isIdle || this.wake()),
      changes.onChange(() => this.wake()),
      () => listenable?.removeEventListener("online", this.hurry),
    ];
    this.wake();
  }

  close(): void {
    clearTimeout(this.timer);
    this.closing.abort();
    for (const end of this.ends) end();
  }

  /** Ends what is under way, once nobody wants it. */
  get signal(): AbortSignal {
    return this.closing.signal;
  }

  /** Send a request to the gateway; throws what it refused. */
  async ask<T>(method: "GET" | "POST", path: string, body?: object): Promise<T> {
    const text = body ? JSON.stringify(body) : null;
    return (await this.http.send({ call: [method, path, text] }, this.closing.signal)) as T;
  }

  /** Do what can be done now, once; throws what stopped it. */
  run(): Promise<void> {
    const done = this.running.then(() => this.alone());
    this.running = done.catch(() => undefined);
    return done;
  }

  private async alone(): Promise<void> {
    const locks = (globalThis as { navigator?: Partial<Navigator> }).navigator?.locks;
    if (!locks || !this.client.inside.isDurable) return this.once();
    const signal = AbortSignal.timeout(this.othersMs);
    let isBegun = false as boolean;
    try {
      await locks.request(`lakesync ${this.client.inside.name} ${this.what}`, { signal }, () => {
        isBegun = true;
        return this.once();
      });
    } catch (error) {
      if (isBegun) throw error;
      await this.once();
    }
  }

  private async once(): Promise<void> {
    let waitMs: number | null;
    try {
      waitMs = await this.body();
      this.failures = 0;
    } catch (error) {
      if (!(error instanceof LakeSyncError)) throw error;
      this.failures += 1;
      const ceiling = doubled(WAIT_MS_MIN, WAIT_MS_MAX, this.failures);
      this.plan(Math.max(error.retryAfterS * 1_000, ceiling * (0.5 + Math.random() / 2)));
      throw error;
    }
    this.isIdle = waitMs === null;
    if (waitMs !== null) this.plan(waitMs);
  }

  private readonly hurry = (): void => {
    this.failures = 0;
    this.wake();
  };

  /** Try soon, unless it has just failed. */
  private wake(): void {
    this.isIdle = false;
    if (!this.failures) this.plan(SOON_MS);
  }

  private plan(waitMs: number): void {
    clearTimeout(this.timer);
    if (this.closing.signal.aborted || !this.client.inside.isConnected) return;
    this.timer = setTimeout(() => void this.run().catch(rethrown), waitMs);
  }
}

/** What the gateway or the network refuses is tried again; all else is a fault of the program. */
function rethrown(error: unknown): void {
  if (!(error instanceof LakeSyncError)) throw error;
}

/** 32 hexadecimal digits that nobody guesses. */
export const randomHex = (): string => hex(crypto.getRandomValues(new Uint8Array(16)));

export const hex = (bytes: Uint8Array): string =>
  Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
