/**
 * A table of the client as a collection of TanStack DB: its live queries, joins and optimistic state.
 *
 * The collection holds the rows as the client shows them. An edit of the collection is optimistic
 * until the client has it, which needs no network: then it is durable, and the collection reads it
 * before the optimistic state ends. What the gateway refuses later stays visible, as in the client,
 * until the app has decided.
 */

import {
  deepEquals,
  type BaseCollectionConfig,
  type ChangeMessageOrDeleteKeyMessage,
  type CollectionConfig,
  type InferSchemaOutput,
  type MutationFnParams,
  type PendingMutation,
  type StandardSchema,
  type SyncConfig,
} from "@tanstack/db";

import type { Client, QueriedRow, Query, Transaction } from "./client.js";

/** What a collection needs to know. The rest is TanStack DB's, such as `id`, `schema`, `gcTime`. */
export type LakeSyncCollectionConfig<
  T extends object,
  TSchema extends StandardSchema<unknown> = never,
> = Omit<
  BaseCollectionConfig<T, string, TSchema, LakeSyncUtils>,
  "getKey" | "onInsert" | "onUpdate" | "onDelete" | "syncMode" | "utils"
> & {
  readonly client: Client;
  readonly table: string;
  /** The property of a row that is its id; it is no column. */
  readonly key?: string;
  /** Only the rows that have these values. */
  readonly where?: NonNullable<Query["where"]>;
};

/** `collection.utils`. */
export interface LakeSyncUtils extends Record<string, unknown> {
  readonly client: Client;
  /** Return once the collection shows what the client has now. */
  readonly refresh: () => Promise<void>;
  /** Make the edits of one mutation a part of a transaction. */
  readonly edit: (edits: Transaction, mutation: PendingMutation) => void;
}

type Options<T extends object, TSchema extends StandardSchema<unknown> = never> = Omit<
  CollectionConfig<T, string, TSchema, LakeSyncUtils>,
  "utils"
> & { readonly utils: LakeSyncUtils };

type Fields = Record<string, unknown>;
type Given = Pick<LakeSyncCollectionConfig<Fields>, "client" | "table" | "key" | "where">;

/** Options for `createCollection`: the rows of a table of a client. */
export function lakesyncCollectionOptions<TSchema extends StandardSchema<unknown>>(
  config: LakeSyncCollectionConfig<InferSchemaOutput<TSchema>, TSchema> & {
    readonly schema: TSchema;
  },
): Options<InferSchemaOutput<TSchema>, TSchema> & { readonly schema: TSchema };
export function lakesyncCollectionOptions<T extends object = QueriedRow>(
  config: LakeSyncCollectionConfig<T> & { readonly schema?: never },
): Options<T> & { readonly schema?: never };
export function lakesyncCollectionOptions({
  client,
  table,
  key = "_row_id",
  where,
  ...given
}: Given): object {
  const query: Query = where ? { table, where } : { table };
  let refresh = (): Promise<void> => Promise.resolve();

  const sync: SyncConfig<Fields, string>["sync"] = ({ collection, ...to }) => {
    let shown = new Map<string, Fields>();
    const read = async (): Promise<void> => {
      const result = await client.query(query);
      if (!result.ok) {
        // Once there are rows they stay, until they can be read again.
        if (collection.status === "loading") to.markError(result.error);
        return;
      }
      const rows = new Map(result.value.map((row) => [row._row_id, named(row, key)]));
      const changes = [...changesBetween(shown, rows)];
      shown = rows;
      if (changes.length) {
        to.begin();
        for (const change of changes) to.write(change);
        void to.commit();
      }
      to.markReady();
    };
    refresh = oneAtATime(read);
    void refresh();
    return client.onChange((tables) => {
      if (tables.has(table.toLowerCase())) void refresh();
    });
  };

  const options: Options<Fields> = {
    ...given,
    getKey: (row) => String(row[key]),
    sync: { sync, rowUpdateMode: "full" },
    onInsert: lakesyncMutation,
    onUpdate: lakesyncMutation,
    onDelete: lakesyncMutation,
    utils: {
      client,
      refresh: () => refresh(),
      edit: (edits, mutation) => edit(edits, table, key, mutation),
    },
  };
  return options;
}

/**
 * Write what TanStack DB has gathered, as one transaction of the client, and return once it is
 * durable: the `mutationFn` of transactions and actions that edit several collections.
 *
 * Throws the client's error: the optimistic state ends, and nothing was written.
 */
export async function lakesyncMutation<T extends object>({
  transaction,
}: Pick<MutationFnParams<T>, "transaction">): Promise<void> {
  const mutations = transaction.mutations as unknown as PendingMutation[];
  const all = mutations.map(({ collection }) => collection.utils as LakeSyncUtils);
  const { client } = all[0]!;
  if (all.some((utils) => utils.client !== client)) {
    throw new Error(
      "edit collections of one client in a transaction: all of it is written, or none",
    );
  }
  const written = await client.transaction((edits) => {
    mutations.forEach((mutation, at) => all[at]!.edit(edits, mutation));
  });
  if (!written.ok) throw written.error;
  await Promise.all([...new Set(all)].map(({ refresh }) => refresh()));
}

/** A row under the name that the collection has for its id. */
function named({ _row_id: id, ...columns }: QueriedRow, key: string): Fields {
  return { ...columns, [key]: id };
}

function edit(edits: Transaction, table: string, key: string, mutation: PendingMutation): void {
  const rowId = String(mutation.key);
  const columnsOf = (values: object): Fields =>
    Object.fromEntries(
      Object.entries(values)
        .filter(([name]) => name !== key)
        .map(([name, value]: [string, unknown]) => [name, value ?? null]),
    );
  if (mutation.type === "insert") edits.insert(table, rowId, columnsOf(mutation.modified));
  else if (mutation.type === "update") edits.update(table, rowId, columnsOf(mutation.changes));
  else edits.delete(table, rowId);
}

function* changesBetween(
  before: ReadonlyMap<string, Fields>,
  after: ReadonlyMap<string, Fields>,
): Generator<ChangeMessageOrDeleteKeyMessage<Fields, string>> {
  for (const key of before.keys()) if (!after.has(key)) yield { type: "delete", key };
  for (const [key, value] of after) {
    const old = before.get(key);
    if (!old) yield { type: "insert", value };
    else if (!deepEquals(old, value)) yield { type: "update", value };
  }
}

/** A task that runs one at a time; whoever asks while it runs has it run once more. */
function oneAtATime(task: () => Promise<void>): () => Promise<void> {
  let last = Promise.resolve();
  let next: Promise<void> | null = null;
  return () => {
    if (!next) {
      next = last
        .catch(() => undefined)
        .then(() => {
          next = null;
          return task();
        });
      last = next;
    }
    return next;
  };
}
