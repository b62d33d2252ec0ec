/**
 * Syncing in the background, as long as some tab wants it.
 *
 * At once, soon after edits, whenever the socket or whoever looks at the app wakes it, and every ten
 * seconds, or rarely while the socket is open. After failures it waits, longer each time.
 */

import { LakeSyncError } from "./errors.js";
import { ENDS, keepOpen, type Hearer, type Socket } from "./socket.js";
import { about, waitAfter } from "./waits.js";

const EVERY_MS = 10_000;
/** How often it looks for news while a socket tells of them. */
const LIVE_EVERY_MS = 7_200_000;
/** How long edits must pause before they are pushed. */
const EDITED_MS = 200;
/** How long edits that do not pause wait for each other. */
const GATHER_MS_MAX = 1_000;

export interface LoopOptions {
  readonly clientId: string;
  /** The stack's `SocketUrl`: changes of others come at once. */
  readonly socketUrl?: string;
  readonly WebSocket?: typeof WebSocket;
}

/** What a loop does, and what it tells. */
export interface Looped extends Pick<Hearer, "token" | "hear"> {
  /** Sync, once a sync that is under way has ended; `begins` is called then. */
  sync(begins: () => void): Promise<void>;
  /** Try at the next sync what was stopped on its way. */
  hurry(): void;
  note(state: { isConnected?: boolean; isLive?: boolean; socketError?: string | null }): void;
}

export interface Loop {
  /** Sync for a tab: now, and on. */
  readonly connect: (tab: string) => void;
  readonly disconnect: (tab: string) => void;
  /** The tabs that want it. */
  readonly tabs: () => string[];
  readonly edited: () => void;
  /** Whoever looks at the app, or has a network again, waits for nothing. */
  readonly wake: () => void;
  readonly stop: () => void;
}

export function loopOf(options: LoopOptions, looped: Looped): Loop {
  const tabs = new Set<string>();
  let socket: Socket | undefined;
  let isLive = false;
  let failures = 0;
  /** A sync was asked for that has not begun. */
  let isDue = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  /** When it fires. */
  let dueMs = 0;
  let gathering: ReturnType<typeof setTimeout> | undefined;
  let gatheredMs = 0;

  /** Sync in some time, unless that is to happen sooner. */
  const plan = (waitMs: number): void => {
    const atMs = performance.now() + waitMs;
    if (!tabs.size || (timer && dueMs <= atMs)) return;
    clearTimeout(timer);
    dueMs = atMs;
    timer = setTimeout(() => {
      timer = undefined;
      if (!isDue) void background();
    }, waitMs);
  };

  const background = async (): Promise<void> => {
    isDue = true;
    try {
      await looped.sync(() => (isDue = false));
      failures = 0;
      plan(isLive ? LIVE_EVERY_MS : about(EVERY_MS));
    } catch (error) {
      isDue = false;
      if (!(error instanceof LakeSyncError)) throw error;
      if (ENDS.has(error.code)) socket?.stop();
      failures += 1;
      plan(waitAfter(error, failures));
    }
  };

  const listen = (): void => {
    const { clientId, socketUrl, WebSocket: Given = globalThis.WebSocket } = options;
    if (socket || !socketUrl) return;
    const hearer: Hearer = {
      ...looped,
      wake: () => plan(0),
      onOpen: (isOpen, socketError) => {
        isLive = isOpen;
        looped.note({ isLive, socketError });
        if (!isOpen) plan(about(EVERY_MS));
      },
    };
    socket = keepOpen(socketUrl, clientId, hearer, Given);
  };

  const wake = (): void => {
    looped.hurry();
    socket?.hurry();
    plan(0);
  };

  const stop = (): void => {
    tabs.clear();
    clearTimeout(timer);
    clearTimeout(gathering);
    timer = gathering = undefined;
    socket?.stop();
    socket = undefined;
    isLive = false;
    looped.note({ isConnected: false, isLive, socketError: null });
  };

  return {
    tabs: () => [...tabs],
    wake,
    stop,
    connect: (tab) => {
      tabs.add(tab);
      looped.note({ isConnected: true });
      listen();
      wake();
    },
    disconnect: (tab) => {
      tabs.delete(tab);
      if (!tabs.size) stop();
    },
    edited: () => {
      const now = performance.now();
      if (!tabs.size || failures) return;
      if (!gathering) gatheredMs = now;
      else if (now - gatheredMs > GATHER_MS_MAX) return;
      clearTimeout(gathering);
      gathering = setTimeout(() => {
        gathering = undefined;
        plan(0);
      }, EDITED_MS);
    },
  };
}
