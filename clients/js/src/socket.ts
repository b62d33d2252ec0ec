/**
 * A WebSocket beside the requests: changes of others come as they are committed.
 *
 * It only accelerates: a client without it, or that receives only part of its frames, has the same
 * rows. A broadcast that fits the cursor is applied. Anything else, and each new connection, wakes the
 * sync; if other rules decided it, after a random time, as all clients are told at the same moment.
 *
 * Why a handshake was refused no browser says; the next sync is told it. API Gateway ends a
 * connection that was silent for ten minutes, or is two hours old. Laws T1-T2: docs/spec/realtime.md.
 */

import { fault, LakeSyncError } from "./errors.js";
import { exact } from "./json.js";
import { notOurs, readPage, type Page } from "./messages.js";
import { about, waitAfter } from "./waits.js";

/** What a socket tells of. */
export interface Hearer {
  /** The token, or another one if this one was refused. */
  token(isRefused: boolean): Promise<string>;
  /** Apply a broadcast: "wake" if there is more to pull, "later" if so have all others. */
  hear(page: Page): Promise<"done" | "wake" | "later">;
  /** Sync now. */
  wake(): void;
  /** Whether it is open, and if not, why. */
  onOpen(isOpen: boolean, reason: string | null): void;
}

const SUB_PROTOCOL = "lakesync.v1.json";
const PING = '{"action":"ping"}';
const PONG = "Bw==";
const OPEN_MS_MAX = 10_000;
/** After how long without a frame a keep-alive is sent, or up to a tenth later. */
const SILENT_MS = 450_000;
/** How long its answer may take before the connection is taken to be dead. */
const ANSWER_MS_MAX = 40_000;
const RENEWED_MS = 6_840_000;
/** Within which time a client reads again what other rules show. */
const REREAD_MS_MAX = 30_000;
/** What ends it for good. */
export const ENDS: ReadonlySet<string> = new Set(["REVOKED", "GATEWAY_DELETED"]);

interface Refusal {
  readonly code: string;
  readonly error: string;
  readonly field?: string;
  readonly retryAfterS?: number;
  readonly closes: boolean;
}

type Frame = { readonly page: Page } | { readonly error: LakeSyncError; readonly closes: boolean };

/** Read a frame; null if it says nothing. */
export function readFrame(text: unknown): Frame | null {
  if (typeof text !== "string") throw notOurs();
  if (text === PONG) return null;
  const frame = exact(text) as { tag?: number; body?: unknown } | null;
  switch (frame?.tag) {
    case undefined: // API Gateway's own: it is busy
    case 1:
    case 2:
    case 5:
    case 7:
      return null;
    case 3:
      return { page: readPage(frame.body) };
    case 6: {
      const { code, error, field = null, retryAfterS, closes } = frame.body as Refusal;
      return { error: new LakeSyncError(code, error, field, retryAfterS), closes };
    }
  }
  throw notOurs();
}

interface Connection {
  readonly socket: WebSocket;
  /** Why it ended; null if it is to be renewed. */
  readonly ended: Promise<LakeSyncError | null>;
  readonly end: (error: LakeSyncError | null) => void;
  /** Of its next keep-alive, or of the answer to the last one. */
  timer?: ReturnType<typeof setTimeout>;
}

/** What keeps a socket open. */
export interface Socket {
  stop(): void;
  /** The network is another, or the device was asleep: open it now, or look whether it is open. */
  hurry(): void;
}

/** Keep a socket to the gateway open until it is stopped. */
export function keepOpen(
  url: string,
  clientId: string,
  hearer: Hearer,
  WebSocketOf: typeof WebSocket,
): Socket {
  const stopping = new AbortController();
  const isStopped = (): boolean => stopping.signal.aborted;
  let connection: Connection | null = null;
  let failures = 0;
  let silences = 0;
  let isRefused = false;
  /** The token was renewed since the last frame came: it is not renewed again. */
  let isRenewed = false;
  let reread: ReturnType<typeof setTimeout> | undefined;
  let endWait: () => void = () => undefined;

  const run = async (): Promise<void> => {
    while (!isStopped()) {
      const error = await listen();
      if (isStopped()) return;
      hearer.onOpen(false, `${url}: ${error.message}`);
      if (ENDS.has(error.code)) return;
      isRefused = error.code === "AUTH_ERROR" && !isRenewed;
      failures += 1;
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, waitAfter(error, failures));
        endWait = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  };

  /** Keep connections, one after the other, for as long as it can be; why that ended. */
  const listen = async (): Promise<LakeSyncError> => {
    try {
      for (;;) {
        const next = await open();
        closed(connection);
        connection = next;
        if (isStopped()) return unreachable("stopped");
        hearer.onOpen(true, null);
        rereadIn(null);
        hearer.wake(); // whatever was committed before it was open
        hearNext(next);
        const renewal = setTimeout(() => next.end(null), about(RENEWED_MS));
        const error = await next.ended;
        clearTimeout(renewal);
        if (error) return error;
      }
    } catch (error) {
      return error instanceof LakeSyncError ? error : unreachable(String(error));
    } finally {
      closed(connection);
      connection = null;
    }
  };

  const open = async (): Promise<Connection> => {
    const token = await hearer.token(isRefused);
    isRenewed ||= isRefused;
    isRefused = false;
    const address = `${url}?clientId=${encodeURIComponent(clientId)}`;
    const socket = new WebSocketOf(address, [SUB_PROTOCOL, `bearer.${token}`]);
    let end!: Connection["end"];
    const ended = new Promise<LakeSyncError | null>((resolve) => (end = resolve));
    const made: Connection = { socket, ended, end };
    socket.onclose = ({ code }) => end(unreachable(`closed (${code})`));
    socket.onmessage = ({ data }: MessageEvent<unknown>) => take(made, data);
    made.timer = setTimeout(() => end(unreachable("it does not open")), OPEN_MS_MAX);
    const opened = new Promise<null>((resolve) => (socket.onopen = () => resolve(null)));
    const error = await Promise.race([opened, ended]);
    clearTimeout(made.timer);
    if (!error) return made;
    closed(made);
    throw error;
  };

  const take = (from: Connection, data: unknown): void => {
    try {
      const frame = readFrame(data);
      failures = 0;
      isRenewed = false;
      hearNext(from);
      if (!frame) return;
      if ("page" in frame) void bring(frame.page);
      else if (frame.closes) from.end(frame.error);
      else hearer.wake(); // over HTTPS the reason is told, or it works
    } catch {
      from.end(notOurs());
    }
  };

  const bring = async (page: Page): Promise<void> => {
    const then = await hearer.hear(page);
    if (then === "wake") hearer.wake();
    else if (then === "done")
      rereadIn(null); // it was read again meanwhile
    else reread ??= rereadIn(Math.random() * REREAD_MS_MAX);
  };

  const rereadIn = (waitMs: number | null): typeof reread => {
    clearTimeout(reread);
    const wake = (): void => {
      reread = undefined;
      if (!isStopped()) hearer.wake();
    };
    return (reread = waitMs === null ? undefined : setTimeout(wake, waitMs));
  };

  /** Wait for the next frame; of a silent connection it is asked for. */
  const hearNext = (from: Connection): void => {
    clearTimeout(from.timer);
    const ask = (): void => {
      ping(from);
      silences += 1;
      if (silences % 2 === 0) hearer.wake(); // something may have been missed
    };
    from.timer = setTimeout(ask, SILENT_MS * (1 + Math.random() / 10));
  };

  const ping = (from: Connection): void => {
    clearTimeout(from.timer);
    from.timer = setTimeout(() => from.end(unreachable("it is dead")), ANSWER_MS_MAX);
    from.socket.send(PING);
  };

  void run();
  return {
    stop: () => {
      stopping.abort();
      rereadIn(null);
      endWait();
      connection?.end(unreachable("stopped"));
    },
    hurry: () => {
      endWait();
      if (connection) ping(connection);
    },
  };
}

function closed(connection: Connection | null): void {
  if (!connection) return;
  clearTimeout(connection.timer);
  connection.socket.onmessage = null;
  connection.socket.close();
}

const unreachable = (why: string): LakeSyncError => fault("UNREACHABLE", `the socket: ${why}`);
