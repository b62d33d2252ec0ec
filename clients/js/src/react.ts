/**
 * Hooks for React 18 and newer, by `useSyncExternalStore`.
 *
 * What components show is kept outside of React, once for each client and each thing that is shown:
 * a hundred components with one query watch it once, and the watch ends with the last of them. On a
 * server nothing is read and nothing is started: hooks show that they load.
 */

import {
  createContext,
  createElement,
  useCallback,
  useContext,
  useMemo,
  useState,
  useSyncExternalStore,
  type ReactNode,
} from "react";

import type { Action, ActionDescription, Actions } from "./actions.js";
import type { Client, OutboxEntry, QueriedRow, Query, ShownConflict, Status } from "./client.js";
import type { LakeSyncError } from "./errors.js";

// --- the client -----------------------------------------------------------------------------------

interface Given {
  readonly client: Client | null;
  /** For `useAction` and `useActionDiscovery`. */
  readonly actions?: Actions | null;
}

const Context = createContext<Given | null>(null);

/** Give a client to all components below; null while it is being opened, and on a server. */
export function LakeSyncProvider({
  client,
  actions = null,
  children,
}: Given & { readonly children?: ReactNode }): ReactNode {
  const value = useMemo(() => ({ client, actions }), [client, actions]);
  return createElement(Context.Provider, { value }, children);
}

function useGiven(): Given {
  const given = useContext(Context);
  if (!given) throw new Error("put a LakeSyncProvider above this component");
  return given;
}

const useClient = (): Client | null => useGiven().client;

/** The client, where it is known to be open. */
export function useLakeSync(): Client {
  const client = useClient();
  if (!client) throw new Error("the client is not open: render this component once it is");
  return client;
}

// --- what components show -------------------------------------------------------------------------

/** Something that is kept up to date for as long as components show it. */
interface Source<T> {
  value: T;
  readonly listeners: Set<() => void>;
  end: () => void;
  loading: Promise<void> | null;
}

/** Keep a value up to date; returns what ends that. */
type Start<T> = (set: (value: T) => void, get: () => T) => () => void;

/** A component's way to a source: there is one for as long as a component shows it. */
interface Store<T> {
  readonly subscribe: (listener: () => void) => () => void;
  readonly get: () => T;
  /** Keep the source until it has a value, and then for as long as React takes to show it. */
  readonly load: () => Promise<void>;
}

/** How long a value that was waited for is kept without anyone who shows it. */
const UNSHOWN_MS_MAX = 5_000;

const sources = new WeakMap<object, Map<string, Source<unknown>>>();

function storeOf<T>(of: object, name: string, initial: T, start: Start<T>): Store<T> {
  const named = (sources.get(of) ?? new Map()) as Map<string, Source<T>>;
  sources.set(of, named);
  let last = initial;
  const get = (): T => (last = named.get(name)?.value ?? last);

  const subscribe = (told: () => void): (() => void) => {
    const source = named.get(name) ?? {
      value: last,
      listeners: new Set(),
      end: () => undefined,
      loading: null,
    };
    const listener = (): void => told(); // of its own: two may give the same function
    source.listeners.add(listener);
    if (!named.has(name)) {
      named.set(name, source);
      const set = (value: T): void => {
        source.value = value;
        for (const each of [...source.listeners]) each();
      };
      source.end = start(set, () => source.value);
    }
    return () => {
      if (!source.listeners.delete(listener) || source.listeners.size) return;
      named.delete(name);
      source.end();
    };
  };

  const load = (): Promise<void> => {
    const known = named.get(name)?.loading;
    if (known) return known;
    let release: () => void;
    const loading = new Promise<void>((resolve) => {
      release = subscribe(resolve);
    });
    named.get(name)!.loading = loading;
    void loading.then(() => setTimeout(() => release(), UNSHOWN_MS_MAX));
    return loading;
  };
  return { subscribe, get, load };
}

const never = (): (() => void) => () => undefined;

/** Show a store's value; where there is no client yet, and on a server, what stands for it. */
function useStore<T>(store: Store<T> | null, otherwise: T): T {
  const get = store?.get ?? (() => otherwise);
  return useSyncExternalStore(store?.subscribe ?? never, get, () => otherwise);
}

// --- hooks ----------------------------------------------------------------------------------------

export interface QueryResult {
  /** The rows; none while they are loading. */
  readonly rows: readonly QueriedRow[];
  readonly isLoading: boolean;
  /** Why the rows could not be read; those of before are still shown. */
  readonly error: LakeSyncError | null;
}

const LOADING: QueryResult = { rows: [], isLoading: true, error: null };
/** The same, by which it is known that React renders for a server, or takes over from one. */
const ON_SERVER: QueryResult = { ...LOADING };

/**
 * The rows of a query, now and whenever they change.
 *
 * A query is the same as long as it says the same: it need not be the same object.
 *
 * @param options - `suspense`: suspend while the rows are loading, instead of `isLoading`
 */
export function useQuery(query: Query, options: { readonly suspense?: boolean } = {}): QueryResult {
  const client = useClient();
  const name = JSON.stringify(query, ordered);
  const store = useMemo(
    () => client && storeOf(client, `query ${name}`, LOADING, watched(client, query)),
    [client, name],
  );
  const result = useStore(store, ON_SERVER);
  // eslint-disable-next-line @typescript-eslint/only-throw-error
  if (options.suspense && store && result === LOADING) throw store.load();
  return result;
}

const watched =
  (client: Client, query: Query): Start<QueryResult> =>
  (set, get) =>
    client.watch(
      query,
      (rows) => set({ rows, isLoading: false, error: null }),
      (error) => set({ ...get(), isLoading: false, error }),
    );

/** A value as text that is the same for equal values: keys in order, and what JSON has not. */
function ordered(_: string, value: unknown): unknown {
  if (typeof value === "bigint") return { bigint: String(value) };
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1)));
}

const NOT_OPEN: Status = {
  waiting: 0,
  quarantined: 0,
  conflicts: 0,
  hasSynced: false,
  syncedMs: 0,
  isConnected: false,
  isLive: false,
  socketError: null,
  isUploading: false,
  isDownloading: false,
  received: 0,
  progress: null,
  lastError: null,
  isDurable: false,
  isPersisted: false,
  lost: 0,
};

/** How far the client has synced, what waits, and what was refused. */
export function useSyncStatus(): Status {
  return useStatus("status", NOT_OPEN, (client) => client.status, isSameStatus);
}

const isSameStatus = (one: Status, other: Status): boolean =>
  (Object.keys(one) as (keyof Status)[]).every((name) => one[name] === other[name]);

const NOTHING: readonly never[] = [];

/** The edits that were refused, until the app has decided: `retry`, `discard` or `amend`. */
export function useQuarantined(): readonly OutboxEntry[] {
  return useStatus<readonly OutboxEntry[]>(
    "quarantined",
    NOTHING,
    (client) => client.quarantined(),
    (one, other) => areSame(one, other, ["deltaId", "reason"]),
  );
}

/** Writes that were lost to others', or that others lost, until the app has resolved them. */
export function useConflicts(): readonly ShownConflict[] {
  return useStatus<readonly ShownConflict[]>(
    "conflicts",
    NOTHING,
    (client) => client.conflicts(),
    (one, other) => areSame(one, other, ["id", "ownHlc", "otherHlc", "hidden"]),
  );
}

const areSame = <T>(one: readonly T[], other: readonly T[], by: readonly (keyof T)[]): boolean =>
  one.length === other.length &&
  one.every((each, at) => by.every((name) => each[name] === other[at]![name]));

/** Show what `onStatus` tells of. */
function useStatus<T>(
  name: string,
  otherwise: T,
  read: (client: Client) => T,
  isSame: (one: T, other: T) => boolean,
): T {
  const client = useClient();
  const store = useMemo(
    () =>
      client &&
      storeOf(client, name, read(client), (set, get) => {
        const look = (): void => {
          const now = read(client);
          if (!isSame(get(), now)) set(now);
        };
        look();
        return client.onStatus(look);
      }),
    [client, name],
  );
  return useStore(store, otherwise);
}

export type Mutation = Pick<Client, "insert" | "update" | "upsert" | "transaction"> & {
  /** `delete`, by a name that a variable may have. */
  readonly remove: Client["delete"];
};

/** The client's edits, as functions that stay the same. */
export function useMutation(): Mutation {
  const client = useLakeSync();
  return useMemo(
    () => ({
      insert: (...given) => client.insert(...given),
      update: (...given) => client.update(...given),
      upsert: (...given) => client.upsert(...given),
      remove: (...given) => client.delete(...given),
      transaction: (...given) => client.transaction(...given),
    }),
    [client],
  );
}

// --- actions --------------------------------------------------------------------------------------

export interface ActionState {
  /** Queue an action; it is durable when this is answered, and done once. */
  readonly run: Actions["run"];
  /** The action that is followed: the one that this component ran last. */
  readonly action: Action | null;
  /** Whether there is one that has not ended. */
  readonly isPending: boolean;
}

/**
 * Run actions, and follow how the last one goes.
 *
 * @param actionId - one to follow until this component runs another, as after a reload
 */
export function useAction(actionId = ""): ActionState {
  const { actions = null } = useGiven();
  const [ran, setRan] = useState("");
  const id = ran || actionId;
  const store = useMemo(
    () =>
      actions && id
        ? storeOf<Action | null>(actions, `action ${id}`, null, followed(actions, id))
        : null,
    [actions, id],
  );
  const action = useStore(store, null);
  const run = useCallback<Actions["run"]>(
    async (...given) => {
      if (!actions) throw new Error("give actions to the LakeSyncProvider");
      const queued = await actions.run(...given);
      if (queued.ok) setRan(queued.value.actionId);
      return queued;
    },
    [actions],
  );
  const isOpen = !action || action.status === "waiting" || action.status === "sent";
  return { run, action, isPending: id !== "" && isOpen };
}

const followed =
  (actions: Actions, id: string): Start<Action | null> =>
  (set) => {
    let isOver = false;
    const look = async (): Promise<void> => {
      const found = await actions.find(id);
      if (found.ok && !isOver) set(found.value);
    };
    const end = actions.onChange(() => void look());
    void look();
    return () => {
      isOver = true;
      end();
    };
  };

export interface Discovery {
  /** The actions that this client may run, by the names of their connectors. */
  readonly connectors: Readonly<Record<string, readonly ActionDescription[]>>;
  readonly isLoading: boolean;
  readonly error: LakeSyncError | null;
  /** Ask again. */
  readonly refetch: () => void;
}

const UNKNOWN: Discovery = {
  connectors: {},
  isLoading: true,
  error: null,
  refetch: () => undefined,
};

/** The actions that the gateway lets this client run; asked once for all components that show them. */
export function useActionDiscovery(): Discovery {
  const { actions = null } = useGiven();
  const store = useMemo(
    () => actions && storeOf(actions, "describe", UNKNOWN, described(actions)),
    [actions],
  );
  return useStore(store, UNKNOWN);
}

const described =
  (actions: Actions): Start<Discovery> =>
  (set, get) => {
    let isOver = false;
    const ask = async (): Promise<void> => {
      set({ ...get(), isLoading: true, refetch });
      const answer = await actions.describe();
      if (isOver) return;
      const done = { ...get(), isLoading: false };
      set(
        answer.ok
          ? { ...done, connectors: answer.value, error: null }
          : { ...done, error: answer.error },
      );
    };
    const refetch = (): void => void ask();
    refetch();
    return () => {
      isOver = true;
    };
  };
