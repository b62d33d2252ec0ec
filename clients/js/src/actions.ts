/**
 * Actions: effects outside LakeSync, requested at any time, each done once, and its outcome told.
 *
 *     waiting ──sent──► sent ──final outcome──► done, or dead ──retry──► another action, waiting
 *        │               │ └──no answer, or not now──► sent again, under the same id
 *        └── an edit that it waits for was refused ──► dead
 *
 * That an action is sent is stored before it is sent, and its outcome before it is told; it always has
 * the id and the content that it was queued with. So an action that is interrupted anywhere is sent
 * again, and the gateway knows it. Laws X11-X14: docs/spec/actions.md.
 */

import { Background, randomHex } from "./background.js";
import { byteLength } from "./bytes.js";
import { attempt, type Client, type Result } from "./client.js";
import { fault, LakeSyncError } from "./errors.js";
import { canonical } from "./json.js";
import { Side, type Changing } from "./side.js";
import { max, min } from "./stamp.js";
import type { Entry } from "./state.js";
import { doubled } from "./waits.js";

export type Data = Readonly<Record<string, unknown>>;

/** An action of the queue. */
export interface Action {
  readonly actionId: string;
  readonly connector: string;
  readonly actionType: string;
  readonly params: Data;
  readonly idempotencyKey: string;
  readonly status:
    /** It was never sent. */
    | "waiting"
    /** It was sent, and how it ended is not known. */
    | "sent"
    | "done"
    /** It was not done, or its outcome is unknown: it waits for the app. */
    | "dead";
  /** What it gave, once it is done. */
  readonly data: Data | null;
  /** Why it ended; before that, why it could not be done when it was last sent. Empty if nothing. */
  readonly code: string;
  readonly reason: string;
  /** How often it was sent. */
  readonly attempts: number;
  /** When it was queued, by the device's clock. */
  readonly queuedMs: number;
}

/** An action as it is stored. */
interface Stored extends Action {
  /** The edits that it waits for: those whose first stamps are between two, but some. */
  readonly after: { readonly from: bigint; readonly to: bigint; readonly but: bigint[] } | null;
  /** The gateway that it was meant for, if one was known. */
  readonly gateway: string;
  readonly sentMs: number;
  readonly dueMs: number;
}

/** What the gateway says of an action that a client may run. */
export interface ActionDescription {
  readonly actionType: string;
  readonly description: string;
  /** The JSON Schema of its parameters. */
  readonly paramsSchema: Data;
}

export interface RunOptions {
  /** Actions of this client with the same key are one. */
  readonly idempotencyKey?: string;
  /** Whether it is sent only once the gateway has the edits that were made before; true unless set. */
  readonly afterEdits?: boolean;
}

export interface QueuedAction {
  readonly actionId: string;
  /** Wait until it ends: what it gave, or why it was not done. */
  readonly result: () => Promise<Result<Data>>;
}

const QUEUED_MAX = 10_000;
const DONE_KEPT_MAX = 1_000;
const REQUEST_ACTIONS_MAX = 25;
const REQUEST_BYTES_MAX = 250_000;
const PARAMS_BYTES_MAX = 65_536;
const NAME_BYTES_MAX = 128;
/** For how long after the first time an action is sent again: gateways remember it for 30 days. */
const SENT_AGAIN_MS_MAX = 28 * 86_400_000;
const RETRY_MS_MIN = 1_000;
const RETRY_MS_MAX = 300_000;

/** How long another tab may take to send actions, before this one does. */
const OTHERS_MS_MAX = 10_000;

const isOpen = ({ status }: Action): boolean => status === "waiting" || status === "sent";

export class Actions {
  private readonly side: Side<Stored>;
  private readonly background: Background;
  private readonly leave: () => void;

  /** The actions of a client. They are sent while it is connected, or by `send`. */
  constructor(private readonly client: Client) {
    this.side = new Side(`${client.inside.name} actions`, client.inside.isDurable);
    const work = (): Promise<number | null> => this.sendAll();
    this.background = new Background(client, "actions", this.side, work, OTHERS_MS_MAX);
    this.leave = client.inside.join({
      waiting: () => this.waiting(),
      wipe: () => this.side.wipe(),
    });
  }

  private async waiting(): Promise<string> {
    const count = await this.side.update(
      ({ items }) => [...items.values()].filter(({ status }) => status !== "done").length,
    );
    return count ? `actions that wait, or are dead letters: ${count}` : "";
  }

  /** End; what waits is sent when the app makes them again. */
  close(): void {
    this.leave();
    this.background.close();
    this.side.close();
  }

  /** Be told that some action has changed, here or in another tab; call what it returns to end it. */
  onChange(listener: () => void): () => void {
    return this.side.onChange(listener);
  }

  // --- the queue ----------------------------------------------------------------------------------

  /** Queue an action; it is durable when this is answered. */
  run(
    connector: string,
    actionType: string,
    params: Data = {},
    options: RunOptions = {},
  ): Promise<Result<QueuedAction>> {
    return this.queued((changing) => this.add(changing, connector, actionType, params, options));
  }

  /** Queue a dead letter again, as another action; without its old key, whose outcome is known. */
  retry(actionId: string, options: RunOptions = {}): Promise<Result<QueuedAction>> {
    return this.queued((changing) => {
      const [key, { connector, actionType, params, status }] = found(changing, actionId);
      if (status !== "dead") throw fault("NOT_FOUND", "no dead letter has this id", "actionId");
      changing.put(key, null);
      return this.add(changing, connector, actionType, params, options);
    });
  }

  private queued(body: (changing: Changing<Stored>) => string): Promise<Result<QueuedAction>> {
    return attempt(async () => {
      const actionId = await this.side.update(body);
      return { actionId, result: () => this.resultOf(actionId) };
    });
  }

  private add(
    { items, put }: Changing<Stored>,
    connector: string,
    actionType: string,
    params: Data,
    { idempotencyKey = "", afterEdits = true }: RunOptions,
  ): string {
    const names = { connector, actionType, ...(idempotencyKey && { idempotencyKey }) };
    for (const [field, name] of Object.entries(names)) checkName(name, field);
    const text = paramsText(params);
    if ([...items.values()].filter(({ status }) => status !== "done").length >= QUEUED_MAX) {
      throw fault("BACKPRESSURE_ERROR", `${QUEUED_MAX} actions wait: sync, or discard some`);
    }
    const { memory } = this.client.inside;
    const actionId = randomHex();
    const place = Number([...items.keys()].at(-1) ?? 0) + 1;
    put(String(place).padStart(16, "0"), {
      actionId,
      connector,
      actionType,
      params: JSON.parse(text) as Data,
      idempotencyKey,
      status: "waiting",
      data: null,
      code: "",
      reason: "",
      attempts: 0,
      queuedMs: this.now,
      after: afterEdits ? afterOf([...memory.outbox.values()]) : null,
      gateway: identityOf(memory.position.epoch),
      sentMs: 0,
      dueMs: 0,
    });
    return actionId;
  }

  /** An action that was queued, also before the page was loaded. */
  find(actionId: string): Promise<Result<Action>> {
    return attempt(() => this.side.update((changing) => found(changing, actionId)[1]));
  }

  /** The actions that have not ended, oldest first. */
  pending(): Promise<Result<readonly Action[]>> {
    return this.listed(isOpen);
  }

  /** The actions that failed, or whose outcome is unknown, oldest first. */
  deadLetters(): Promise<Result<readonly Action[]>> {
    return this.listed(({ status }) => status === "dead");
  }

  private listed(which: (action: Action) => boolean): Promise<Result<readonly Action[]>> {
    return attempt(() => this.side.update(({ items }) => [...items.values()].filter(which)));
  }

  /** Remove an action from the queue; one that was sent may nevertheless be done. */
  discard(actionId: string): Promise<Result<void>> {
    return attempt(() =>
      this.side.update((changing) => changing.put(found(changing, actionId)[0], null)),
    );
  }

  /** Wait until an action ends: what it gave, or why it was not done. */
  resultOf(actionId: string): Promise<Result<Data>> {
    return attempt(
      () =>
        new Promise((resolve, reject) => {
          const look = async (): Promise<void> => {
            const result = await this.find(actionId);
            if (result.ok && isOpen(result.value)) return;
            end();
            if (!result.ok) reject(result.error);
            else if (result.value.data) resolve(result.value.data);
            else reject(fault(result.value.code, result.value.reason));
          };
          const end = this.side.onChange(() => void look());
          void look();
        }),
    );
  }

  /** The actions that this client may run, by the names of their connectors. */
  describe(): Promise<Result<Readonly<Record<string, readonly ActionDescription[]>>>> {
    return attempt(async () => {
      const answer = await this.background.ask<{ connectors?: unknown }>("GET", "actions");
      if (typeof answer.connectors !== "object") throw notOurs();
      return answer.connectors as Record<string, ActionDescription[]>;
    });
  }

  // --- sending ------------------------------------------------------------------------------------

  /** Send what is ready, until nothing is; a client that is connected does it by itself. */
  send(): Promise<Result<void>> {
    return attempt(() => this.background.run());
  }

  private get now(): number {
    return this.client.inside.now();
  }

  /** Send until nothing is ready; in how many milliseconds something is, null if nothing waits. */
  private async sendAll(): Promise<number | null> {
    let most = REQUEST_ACTIONS_MAX;
    for (;;) {
      const actions = await this.side.update((changing) => this.chosen(changing, most));
      if (!actions.length) break;
      most = await this.exchange(actions);
    }
    return this.side.update(({ items }) => {
      const due = [...items.values()].filter(isOpen).map(({ dueMs }) => dueMs - this.now);
      return due.length ? Math.min(...due.map((ms) => (ms > 0 ? ms : RETRY_MS_MAX))) : null;
    });
  }

  /** Choose what is sent next, and note that it is. */
  private chosen({ items, put }: Changing<Stored>, most: number): Stored[] {
    const { memory } = this.client.inside;
    const entries = [...memory.outbox.values()];
    const gateway = identityOf(memory.position.epoch);
    const leaving: Stored[] = [];
    let size = 0;
    for (const [key, action] of items) {
      if (!isOpen(action)) continue;
      const why = this.hopeless(action, entries, gateway);
      if (why) put(key, ended(action, why));
      if (why || !isReady(action, entries, this.now)) continue;
      size += byteLength(JSON.stringify(action.params));
      if (leaving.length === most || (leaving.length && size > REQUEST_BYTES_MAX)) break;
      const { attempts, sentMs } = action;
      const sent: Stored = {
        ...action,
        status: "sent",
        attempts: attempts + 1,
        sentMs: sentMs || this.now,
        dueMs: 0,
      };
      put(key, sent);
      leaving.push(sent);
    }
    return leaving;
  }

  /** Why an action is never sent any more. */
  private hopeless(action: Stored, entries: Entry[], gateway: string): LakeSyncError | null {
    if (action.sentMs && this.now - action.sentMs > SENT_AGAIN_MS_MAX) {
      return fault("UNKNOWN_OUTCOME", "no outcome came in four weeks: look at the other side");
    }
    if (action.gateway && gateway && action.gateway !== gateway) {
      return fault("ANOTHER_GATEWAY", "it was meant for another gateway");
    }
    const refused = action.status === "waiting" && before(action, entries).find(isRefused);
    return refused
      ? fault("EDIT_REFUSED", `not sent: an edit before it was refused (${refused.code})`)
      : null;
  }

  /** Send actions, and note their outcomes; how many may go next. */
  private async exchange(actions: readonly Stored[]): Promise<number> {
    const { clientId, memory } = this.client.inside;
    const { epoch } = memory.position;
    let outcomes: readonly Outcome[];
    try {
      const all = actions.map((one) => sent(one, clientId));
      const body = { clientId, actions: all, ...(epoch && { epoch }) };
      const answer = await this.background.ask<{ results?: unknown }>("POST", "action", body);
      if (!Array.isArray(answer.results)) throw notOurs();
      outcomes = answer.results as Outcome[];
    } catch (error) {
      if (!(error instanceof LakeSyncError)) throw error;
      if (error.code === "ANOTHER_GATEWAY") await this.unsend(actions);
      if (!error.refusesRequest && !error.isForeign) throw error;
      // Does nothing get through, or only these?
      if (error.isForeign) await this.background.ask("GET", "actions");
      if (actions.length > 1) return Math.floor(actions.length / 2);
      outcomes = [refusal(actions[0]!, error)];
    }
    await this.side.update((changing) => this.note(changing, actions, outcomes));
    return REQUEST_ACTIONS_MAX;
  }

  private unsend(actions: readonly Stored[]): Promise<void> {
    return this.side.update((changing) => {
      for (const { actionId } of actions) {
        const [key, action] = found(changing, actionId);
        if (action.attempts > 1) continue;
        changing.put(key, { ...action, status: "waiting", attempts: 0, sentMs: 0 });
      }
    });
  }

  private note(
    { items, put }: Changing<Stored>,
    actions: readonly Stored[],
    outcomes: readonly Outcome[],
  ): void {
    const ids = new Set(actions.map(({ actionId }) => actionId));
    for (const [key, action] of items) {
      if (!ids.has(action.actionId) || !isOpen(action)) continue;
      const outcome =
        outcomes.find(({ actionId }) => actionId === action.actionId) ?? refusal(action, leftOut());
      const { code = "", message = "", retryable, data } = outcome;
      if (!code) put(key, { ...action, status: "done", data: data ?? {}, code, reason: "" });
      else if (retryable !== true) put(key, ended(action, fault(code, message)));
      else {
        const ceiling = doubled(RETRY_MS_MIN, RETRY_MS_MAX, action.attempts);
        const wait = Math.max(RETRY_MS_MIN, (ceiling * (1 + Math.random())) / 2);
        put(key, { ...action, code, reason: message, dueMs: this.now + wait });
      }
    }
    const done = [...items].filter(([, { status }]) => status === "done");
    for (const [key] of done.slice(0, -DONE_KEPT_MAX)) put(key, null);
  }
}

// --- what an action waits for ---------------------------------------------------------------------

const firstStamp = ({ first, delta }: Entry): bigint => first ?? delta.hlc;
const isRefused = ({ status }: Entry): boolean => status === "quarantined";

/** All edits that are in the outbox now, but those that were refused already. */
function afterOf(entries: Entry[]): Stored["after"] {
  const stamps = entries.filter((entry) => !isRefused(entry)).map(firstStamp);
  const but = entries.filter(isRefused).map(firstStamp);
  return stamps.length ? { from: stamps.reduce(min), to: stamps.reduce(max), but } : null;
}

/** The edits of the outbox that an action waits for. */
function before({ after }: Stored, entries: Entry[]): Entry[] {
  if (!after) return [];
  return entries.filter((entry) => {
    const stamp = firstStamp(entry);
    return stamp >= after.from && stamp <= after.to && !after.but.includes(stamp);
  });
}

const isReady = (action: Stored, entries: Entry[], now: number): boolean =>
  // One that is due in a far future was noted before the clock was set back.
  (action.dueMs <= now || action.dueMs > now + RETRY_MS_MAX) &&
  (action.status === "sent" || !before(action, entries).length);

// --- messages -------------------------------------------------------------------------------------

interface Outcome {
  readonly actionId: string;
  readonly data?: Data;
  readonly code?: string;
  readonly message?: string;
  readonly retryable?: boolean;
}

const sent = (
  { actionId, connector, actionType, params, idempotencyKey }: Stored,
  clientId: string,
) => ({
  actionId,
  clientId,
  hlc: "0",
  connector,
  actionType,
  params,
  ...(idempotencyKey && { idempotencyKey }),
});

const refusal = ({ actionId }: Action, error: LakeSyncError): Outcome => ({
  actionId,
  code: error.code,
  message: error.message,
  retryable: error.retry === "later",
});

const ended = (action: Stored, { code, message }: LakeSyncError): Stored => ({
  ...action,
  status: "dead",
  code,
  reason: message,
});

const leftOut = (): LakeSyncError => fault("UNAVAILABLE", "the answer left this action out");
const notOurs = (): LakeSyncError => fault("NOT_THE_GATEWAY", "the answer is not a gateway's");
const identityOf = (epoch: string): string => epoch.split(".")[0]!;

function found({ items }: Changing<Stored>, actionId: string): [string, Stored] {
  for (const pair of items) if (pair[1].actionId === actionId) return pair;
  throw fault("NOT_FOUND", "no action has this id: it was discarded, or done long ago", "actionId");
}

function checkName(name: unknown, field: string): void {
  const size = typeof name === "string" ? byteLength(name) : 0;
  if (!size || size > NAME_BYTES_MAX) {
    throw invalid(`${field} is text of 1 to ${NAME_BYTES_MAX} bytes`, field);
  }
}

function paramsText(params: Data): string {
  let text: string;
  try {
    text = canonical(params);
  } catch (error) {
    throw error instanceof LakeSyncError ? invalid(`params: ${error.message}`, "params") : error;
  }
  if (!text.startsWith("{")) throw invalid("params is an object", "params");
  if (byteLength(text) <= PARAMS_BYTES_MAX) return text;
  throw invalid(`params take at most ${PARAMS_BYTES_MAX} bytes`, "params");
}

const invalid = (message: string, field: string): LakeSyncError =>
  fault("ACTION_VALIDATION_ERROR", message, field);
