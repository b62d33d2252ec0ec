/**
 * Several tabs with one client: one of them owns it, and the others ask it.
 *
 * Who holds the Web Lock is the owner. It may die at any moment; then the browser gives the lock to
 * another tab, which reads what is stored and goes on. A request has a name, under which the owner
 * stores its result together with what it did. So whoever asked may repeat it, to the same owner or
 * to the next, and it is done once.
 *
 * No death is noticed by a heartbeat: timers of tabs in the background stand still. But a phone may
 * stop a tab that holds the lock. So a tab that is visible, and has asked in vain, takes the lock;
 * the owner that was replaced writes nothing, since the *term* is another (`storage.ts`).
 *
 * Every message has the version of this protocol as `v`, and those of an owner have `term`. All else
 * may change with the version.
 */

import type { Browser } from "./browser.js";
import { fault, LakeSyncError } from "./errors.js";
import { isElsewhere, isLost, type Repeat } from "./storage.js";

export const PROTOCOL = 1;
/** After how long without a sign of the owner a request is repeated. */
const SILENT_MS = 5_000;
/** After how many such silences a visible tab takes the lock. */
const SILENCES_MAX = 3;
/** Deeper than any value of a column. */
const DEPTH_MAX = 40;

/** What an owner is asked to do: a name, and what can be sent to another tab. */
export type Command = readonly [name: string, ...given: unknown[]];

/** An error as it can be sent. */
export type Failure = readonly [string, string, string | null, number];

export const failureOf = (error: unknown): Failure =>
  error instanceof LakeSyncError
    ? [error.code, error.message, error.field, error.retryAfterS]
    : ["INTERNAL_ERROR", String(error), null, 0];

interface Asked extends Repeat {
  readonly command: Command;
}

/** What only an owner sends, beside its term and the number of news that it has told. */
interface Told<News, Live> {
  readonly live: Live;
  readonly news?: News | undefined;
  readonly answer?: Answer;
}

interface Answer {
  readonly to: string;
  readonly number: number;
  readonly value?: unknown;
  readonly failure?: Failure;
}

type Message<News, Live> = { readonly v: number } & (
  | (Told<News, Live> & { readonly term: number; readonly count: number })
  | { readonly term?: undefined; readonly asked?: Asked }
);

/** The client of this tab. */
export interface Member<News, Live> {
  /** Begin to own the client; returns the term. */
  own(): Promise<number>;
  /** End to own it, at once. */
  disown(): void;
  /** Do, as the owner, what a tab asks. */
  carryOut(command: Command, repeat?: Repeat): Promise<unknown>;
  /** The state of the owner, which each message shows. */
  live(): Live;
  /** Read again what is stored: what the owner did was missed. */
  reload(): Promise<void>;
  /** Hear how the owner is, and what it has done. */
  hear(live: Live, news: News | undefined): void;
  /** Forget requests of tabs that are gone. */
  forget(isGone: (tabs: string[]) => Promise<string[]>): Promise<void>;
}

type DistributiveOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never;

interface Waiting {
  readonly command: Command;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: Error) => void;
}

export class Tabs<News, Live> {
  readonly me = Date.now().toString(36) + Math.random().toString(36).slice(2);
  private readonly key: string;
  private readonly channel: BroadcastChannel | null;
  private readonly closing = new AbortController();
  private queued = new AbortController();
  private readonly waiting = new Map<number, Waiting>();
  /** The names of requests that are being carried out. */
  private readonly serving = new Set<string>();
  private isOwner = false;
  private release: () => void = () => undefined;
  private requests = 0;
  /** Of the owner that was heard last, and how many of its news were. */
  private term = 0;
  private count = 0;
  private inbox: Promise<unknown> = Promise.resolve();
  private silences = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** Why nothing can be asked. */
  private refusal: LakeSyncError | null = null;

  constructor(
    name: string,
    private readonly browser: Browser,
    private readonly member: Member<News, Live>,
  ) {
    this.key = `lakesync ${name}`;
    this.channel = (browser.locks && browser.channel?.(this.key)) ?? null;
    if (!this.channel) return;
    this.channel.onmessage = (event: MessageEvent<Message<News, Live>>) => {
      this.inbox = this.inbox.then(() => this.take(event.data)).catch(() => undefined);
    };
    (this.channel as { unref?: () => void }).unref?.(); // in Node it would keep a process alive
  }

  /** Own the client, or learn that another tab does, and wait for its end. */
  async open(): Promise<void> {
    const { locks } = this.browser;
    if (!locks) return this.begin();
    // As long as it is held, this tab's requests are remembered.
    if (this.channel) await this.hold(`${this.key} ${this.me}`);
    if (await this.campaign({ ifAvailable: true })) return;
    if (!this.channel) throw isElsewhere();
    this.queue();
    this.post({});
  }

  /** Have the owner do something; it is done once, whatever happens to owners meanwhile. */
  async ask(command: Command): Promise<unknown> {
    if (this.isOwner) {
      try {
        return await this.member.carryOut(command);
      } catch (error) {
        if ((this.owns() && !isLost(error)) || !this.channel) throw error;
        this.abdicate(); // nothing was written: the next owner does it
      }
    }
    return new Promise((resolve, reject) => {
      if (this.refusal) {
        reject(this.refusal);
        return;
      }
      this.requests += 1;
      this.waiting.set(this.requests, { command: copied(command, 0), resolve, reject });
      this.request(this.requests);
      this.watch();
    });
  }

  /** Tell all tabs what was done here, or how the owner is. */
  tell(news?: News): void {
    if (!this.isOwner) return;
    if (news) this.count += 1;
    this.announce({ news });
  }

  /** Another tab owns the client now. */
  abdicate(): void {
    if (!this.isOwner) return;
    this.isOwner = false;
    this.member.disown();
    this.release();
    if (this.channel) this.queue();
    else this.refuse(isElsewhere());
  }

  /** Refuse whatever is asked from now on, and leave the client to other tabs. */
  refuse(error: LakeSyncError): void {
    this.refusal = error;
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  /** End; the next tab in the queue owns the client. */
  close(error = isClosed()): void {
    this.refuse(error);
    this.isOwner = false;
    this.closing.abort();
    this.queued.abort();
    clearTimeout(this.timer);
    this.channel?.close();
    this.release();
  }

  // --- messages -----------------------------------------------------------------------------------

  private post(message: DistributiveOmit<Message<News, Live>, "v">): void {
    if (!this.isClosed) this.channel?.postMessage({ v: PROTOCOL, ...message });
  }

  /** Say something as the owner. */
  private announce(told: Omit<Told<News, Live>, "live"> = {}): void {
    const { term, count } = this;
    this.post({ term, count, live: this.member.live(), ...told });
  }

  private async take(message: Message<News, Live>): Promise<void> {
    if (this.isClosed) return;
    if (message.term !== undefined) return this.listen(message);
    if (!this.isOwner) return;
    if (message.v === PROTOCOL && message.asked) void this.serve(message.asked);
    else {
      this.announce(); // a tab is new, or is told that this one is of another release
      void this.sweep();
    }
  }

  private async listen(message: Message<News, Live> & { readonly term: number }): Promise<void> {
    // From one that was replaced, and does not know it.
    if (message.term < this.term || (this.isOwner && message.term === this.term)) return;
    this.abdicate();
    this.silences = 0;
    if (message.v !== PROTOCOL) {
      this.refuse(isOther());
      await this.member.reload();
      return;
    }
    this.refusal = null;
    const isNew = message.term !== this.term;
    const isNext = !isNew && message.count === this.count + (message.news ? 1 : 0);
    this.term = message.term;
    this.count = message.count;
    if (!isNext) await this.member.reload();
    this.member.hear(message.live, isNext ? message.news : undefined);
    if (isNew) for (const number of this.waiting.keys()) this.request(number);
    if (message.answer?.to === this.me) this.settle(message.answer);
  }

  /** Carry out a request, as the owner, unless that is going on already. */
  private async serve(asked: Asked): Promise<void> {
    const { tab, number, command } = asked;
    const name = `${tab} ${number}`;
    if (this.serving.has(name)) {
      this.announce(); // a sign of life
      return;
    }
    this.serving.add(name);
    const { term } = this;
    let answer: Answer = { to: tab, number };
    try {
      answer = { ...answer, value: await this.member.carryOut(command, asked) };
    } catch (error) {
      answer = { ...answer, failure: failureOf(error) };
    }
    this.serving.delete(name);
    // Otherwise the next owner is asked again.
    if (!this.isOwner || this.term !== term) return;
    if (tab === this.me) this.settle(answer);
    else this.announce({ answer });
  }

  private settle({ number, value, failure }: Answer): void {
    const waiting = this.waiting.get(number);
    this.waiting.delete(number);
    if (failure) waiting?.reject(new LakeSyncError(...failure));
    else waiting?.resolve(value);
  }

  private named(number: number): Asked {
    const [answered = number] = this.waiting.keys();
    return { tab: this.me, number, answered, command: this.waiting.get(number)!.command };
  }

  private request(number: number): void {
    try {
      this.post({ asked: this.named(number) });
    } catch (error) {
      this.settle({ to: this.me, number, failure: failureOf(notSendable(error)) });
    }
  }

  /** Repeat what was not answered; if there is no sign of an owner, be it. */
  private watch(): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      if (this.isOwner || !this.waiting.size) return;
      this.silences += 1;
      const isVisible = this.browser.document?.visibilityState !== "hidden";
      if (this.silences > SILENCES_MAX && isVisible) {
        this.silences = 0;
        this.queue({ steal: true });
      }
      for (const number of this.waiting.keys()) this.request(number);
      this.watch();
    }, SILENT_MS);
  }

  // --- the lock -----------------------------------------------------------------------------------

  private owns(): boolean {
    return this.isOwner;
  }

  private get isClosed(): boolean {
    return this.closing.signal.aborted;
  }

  /** Hold a lock until the end; returns once it is held. */
  private hold(key: string): Promise<void> {
    return new Promise((resolve, reject) => {
      this.browser
        .locks!.request(key, () => {
          resolve();
          return new Promise<void>((end) => {
            if (this.isClosed) end();
            else this.closing.signal.addEventListener("abort", () => end());
          });
        })
        .catch(reject);
    });
  }

  /** Try to own the client; returns whether this tab does. */
  private campaign(options: LockOptions): Promise<boolean> {
    return new Promise((resolve, reject) => {
      this.browser
        .locks!.request(this.key, options, async (lock) => {
          if (!lock || this.isClosed) {
            resolve(false);
            return;
          }
          const end = new Promise<void>((release) => (this.release = release));
          await this.begin();
          resolve(true);
          await end;
        })
        .catch((error: unknown) => {
          // It was taken from this tab, or this tab has closed, or failed to begin.
          this.abdicate();
          reject(error instanceof Error ? error : isClosed());
        });
    });
  }

  /** Wait for the lock, or take it. */
  private queue(options?: LockOptions): void {
    if (this.isClosed) return;
    this.queued.abort();
    this.queued = new AbortController();
    this.campaign(options ?? { signal: this.queued.signal }).catch((error: unknown) => {
      if (this.isClosed || !(error instanceof LakeSyncError)) return;
      // It could not begin; another tab may.
      this.refuse(error);
      this.refusal = null;
      setTimeout(() => this.queue(), SILENT_MS);
    });
  }

  private async begin(): Promise<void> {
    this.term = await this.member.own();
    this.count = 0;
    this.isOwner = true;
    this.refusal = null;
    this.announce();
    for (const number of this.waiting.keys()) void this.serve(this.named(number));
    void this.sweep();
  }

  /** Forget the requests of tabs that are gone, and cannot repeat them. */
  private async sweep(): Promise<void> {
    const { locks } = this.browser;
    if (!locks || !this.channel) return;
    const isGone = async (tabs: string[]): Promise<string[]> => {
      const { held = [] } = await locks.query();
      return tabs.filter((tab) => !held.some(({ name }) => name === `${this.key} ${tab}`));
    };
    await this.member.forget(isGone).catch(() => undefined); // the next owner does it
  }
}

/** Plain lists and objects anew: a proxy, as frameworks have them, cannot be sent. */
function copied<T>(value: T, depth: number): T {
  if (typeof value !== "object" || value === null || depth > DEPTH_MAX) return value;
  if (Array.isArray(value)) return value.map((each) => copied<unknown>(each, depth + 1)) as T;
  if (Object.getPrototypeOf(value) !== Object.prototype) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [name, copied<unknown>(each, depth + 1)]),
  ) as T;
}

const notSendable = (error: unknown): LakeSyncError =>
  fault(
    "VALIDATION_ERROR",
    `a value cannot be sent to the tab that has the client: ${String(error)}`,
  );

export const isClosed = (): LakeSyncError => fault("CLOSED", "the client is closed; open it again");

const isOther = (): LakeSyncError =>
  fault(
    "UPGRADE_REQUIRED",
    "another tab of this browser has another release of the app: reload it, or this one",
  );
