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
import { isPlain } from "./json.js";
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

/** How a tab reaches the tab that owns the client; the latter may be itself. */
export interface Tabs<News> {
  /** The name of this tab. */
  readonly me: string;
  /** Own the client, or learn that another tab does, and wait for its end. */
  open(): Promise<void>;
  /** Have the owner do something; it is done once, whatever happens to owners meanwhile. */
  ask(command: Command): Promise<unknown>;
  /** Tell all tabs what was done here, or how the owner is. */
  tell(news?: News): void;
  /** Another tab owns the client now. */
  abdicate(): void;
  /** End; the next tab in the queue owns the client. */
  close(error?: LakeSyncError): void;
}

export function tabsOf<News, Live>(
  name: string,
  browser: Browser,
  member: Member<News, Live>,
): Tabs<News> {
  const { locks } = browser;
  const me = Date.now().toString(36) + Math.random().toString(36).slice(2);
  const key = `lakesync ${name}`;
  const channel = locks && browser.channel?.(key);
  let isOver = false;
  let finish: () => void = () => undefined;
  const over = new Promise<void>((resolve) => (finish = resolve));
  let queued = new AbortController();
  const waiting = new Map<number, Waiting>();
  /** The names of requests that are being carried out. */
  const serving = new Set<string>();
  let isOwner = false;
  let release: () => void = () => undefined;
  let requests = 0;
  /** Of the owner that was heard last, and how many of its news were. */
  let term = 0;
  let count = 0;
  let inbox: Promise<unknown> = Promise.resolve();
  let silences = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  /** Why nothing can be asked. */
  let refusal: LakeSyncError | null = null;

  if (channel) {
    channel.onmessage = (event: MessageEvent<Message<News, Live>>) => {
      inbox = inbox.then(() => take(event.data)).catch(() => undefined);
    };
    (channel as { unref?: () => void }).unref?.(); // in Node it would keep a process alive
  }

  async function open(): Promise<void> {
    if (!locks) return begin();
    // As long as it is held, this tab's requests are remembered.
    if (channel) await hold(`${key} ${me}`);
    if (await campaign({ ifAvailable: true })) return;
    if (!channel) throw isElsewhere();
    queue();
    post({});
  }

  async function ask(command: Command): Promise<unknown> {
    if (isOwner) {
      try {
        return await member.carryOut(command);
      } catch (error) {
        if ((owns() && !isLost(error)) || !channel) throw error;
        abdicate(); // nothing was written: the next owner does it
      }
    }
    return new Promise((resolve, reject) => {
      if (refusal) {
        reject(refusal);
        return;
      }
      requests += 1;
      waiting.set(requests, { command: copied(command, 0), resolve, reject });
      request(requests);
      watch();
    });
  }

  function tell(news?: News): void {
    if (!isOwner) return;
    if (news) count += 1;
    announce({ news });
  }

  function abdicate(): void {
    if (!isOwner) return;
    isOwner = false;
    member.disown();
    release();
    if (channel) queue();
    else refuse(isElsewhere());
  }

  /** Refuse whatever is asked from now on, and leave the client to other tabs. */
  function refuse(error: LakeSyncError): void {
    refusal = error;
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  }

  function close(error = isClosed()): void {
    refuse(error);
    isOwner = false;
    isOver = true;
    finish();
    queued.abort();
    clearTimeout(timer);
    channel?.close();
    release();
  }

  return { me, open, ask, tell, abdicate, close };

  // --- messages -----------------------------------------------------------------------------------

  function post(message: DistributiveOmit<Message<News, Live>, "v">): void {
    if (!isOver) channel?.postMessage({ v: PROTOCOL, ...message });
  }

  /** Say something as the owner. */
  function announce(told: Omit<Told<News, Live>, "live"> = {}): void {
    post({ term, count, live: member.live(), ...told });
  }

  async function take(message: Message<News, Live>): Promise<void> {
    if (isOver) return;
    if (message.term !== undefined) return listen(message);
    if (!isOwner) return;
    if (message.v === PROTOCOL && message.asked) void serve(message.asked);
    else {
      announce(); // a tab is new, or is told that this one is of another release
      void sweep();
    }
  }

  async function listen(message: Message<News, Live> & { readonly term: number }): Promise<void> {
    // From one that was replaced, and does not know it.
    if (message.term < term || (isOwner && message.term === term)) return;
    abdicate();
    silences = 0;
    if (message.v !== PROTOCOL) {
      refuse(isOther());
      await member.reload();
      return;
    }
    refusal = null;
    const isNew = message.term !== term;
    const isNext = !isNew && message.count === count + (message.news ? 1 : 0);
    term = message.term;
    count = message.count;
    if (!isNext) await member.reload();
    member.hear(message.live, isNext ? message.news : undefined);
    if (isNew) for (const number of waiting.keys()) request(number);
    if (message.answer?.to === me) settle(message.answer);
  }

  /** Carry out a request, as the owner, unless that is going on already. */
  async function serve(asked: Asked): Promise<void> {
    const { tab, number, command } = asked;
    const name = `${tab} ${number}`;
    if (serving.has(name)) {
      announce(); // a sign of life
      return;
    }
    serving.add(name);
    const begun = term;
    let answer: Answer = { to: tab, number };
    try {
      answer = { ...answer, value: await member.carryOut(command, asked) };
    } catch (error) {
      answer = { ...answer, failure: failureOf(error) };
    }
    serving.delete(name);
    // Otherwise the next owner is asked again.
    if (!isOwner || term !== begun) return;
    if (tab === me) settle(answer);
    else announce({ answer });
  }

  function settle({ number, value, failure }: Answer): void {
    const answered = waiting.get(number);
    waiting.delete(number);
    if (failure) answered?.reject(new LakeSyncError(...failure));
    else answered?.resolve(value);
  }

  function named(number: number): Asked {
    const [answered = number] = waiting.keys();
    return { tab: me, number, answered, command: waiting.get(number)!.command };
  }

  function request(number: number): void {
    try {
      post({ asked: named(number) });
    } catch (error) {
      settle({ to: me, number, failure: failureOf(notSendable(error)) });
    }
  }

  /** Repeat what was not answered; if there is no sign of an owner, be it. */
  function watch(): void {
    timer ??= setTimeout(() => {
      timer = undefined;
      if (isOwner || !waiting.size) return;
      silences += 1;
      const isVisible = browser.document?.visibilityState !== "hidden";
      if (silences > SILENCES_MAX && isVisible) {
        silences = 0;
        queue({ steal: true });
      }
      for (const number of waiting.keys()) request(number);
      watch();
    }, SILENT_MS);
  }

  // --- the lock -----------------------------------------------------------------------------------

  function owns(): boolean {
    return isOwner;
  }

  /** Hold a lock until the end; returns once it is held. */
  function hold(own: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const held = (): Promise<void> => {
        resolve();
        return over;
      };
      locks!.request(own, held).catch(reject);
    });
  }

  /** Try to own the client; returns whether this tab does. */
  function campaign(options: LockOptions): Promise<boolean> {
    return new Promise((resolve, reject) => {
      locks!
        .request(key, options, async (lock) => {
          if (!lock || isOver) {
            resolve(false);
            return;
          }
          const end = new Promise<void>((resolve) => (release = resolve));
          await begin();
          resolve(true);
          await end;
        })
        .catch((error: unknown) => {
          // It was taken from this tab, or this tab has closed, or failed to begin.
          abdicate();
          reject(error instanceof Error ? error : isClosed());
        });
    });
  }

  /** Wait for the lock, or take it. */
  function queue(options?: LockOptions): void {
    if (isOver) return;
    queued.abort();
    queued = new AbortController();
    campaign(options ?? { signal: queued.signal }).catch((error: unknown) => {
      if (isOver || !(error instanceof LakeSyncError)) return;
      // It could not begin; another tab may.
      refuse(error);
      refusal = null;
      setTimeout(() => queue(), SILENT_MS);
    });
  }

  async function begin(): Promise<void> {
    term = await member.own();
    count = 0;
    isOwner = true;
    refusal = null;
    announce();
    for (const number of waiting.keys()) void serve(named(number));
    void sweep();
  }

  /** Forget the requests of tabs that are gone, and cannot repeat them. */
  async function sweep(): Promise<void> {
    if (!locks || !channel) return;
    const isGone = async (tabs: string[]): Promise<string[]> => {
      const { held = [] } = await locks.query();
      return tabs.filter((tab) => !held.some(({ name }) => name === `${key} ${tab}`));
    };
    await member.forget(isGone).catch(() => undefined); // the next owner does it
  }
}

/** Plain lists and objects anew: a proxy, as frameworks have them, cannot be sent. */
function copied<T>(value: T, depth: number): T {
  if (typeof value !== "object" || value === null || depth > DEPTH_MAX) return value;
  if (Array.isArray(value)) return value.map((each) => copied<unknown>(each, depth + 1)) as T;
  if (!isPlain(value)) return value;
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
