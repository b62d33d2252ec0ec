/** What a tab needs of its browser; where something is missing or blocked, it is undefined. */

export interface Browser {
  readonly indexedDB: IDBFactory | undefined;
  readonly locks: Pick<LockManager, "request" | "query"> | undefined;
  readonly channel: ((name: string) => BroadcastChannel) | undefined;
  readonly localStorage: Pick<Storage, "getItem" | "setItem"> | undefined;
  readonly storage: Pick<StorageManager, "persist" | "persisted"> | undefined;
  /** The window, or a worker's scope. */
  readonly self: EventTarget | undefined;
  readonly document: (EventTarget & Pick<Document, "visibilityState">) | undefined;
}

export function thisBrowser(): Browser {
  // Even asking for what is blocked may throw.
  const has = <T>(read: () => T): T | undefined => {
    try {
      return read();
    } catch {
      return undefined;
    }
  };
  const all = globalThis as { self?: EventTarget } & Partial<typeof globalThis>;
  const navigator = all.navigator as Partial<Navigator> | undefined;
  return {
    indexedDB: has(() => indexedDB),
    locks: navigator?.locks,
    channel: all.BroadcastChannel && ((name) => new BroadcastChannel(name)),
    localStorage: all.self && has(() => localStorage),
    storage: navigator?.storage,
    self: all.self,
    document: all.document,
  };
}
