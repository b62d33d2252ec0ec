/** A client whose tables have typed rows, as `lakesync codegen --typescript` writes them. */

import type { Client, QueriedRow, Query, Result } from "./client.js";
import type { LakeSyncError } from "./errors.js";
import type { Delta } from "./merge.js";

type Name<Tables> = keyof Tables & string;
type Found<Row> = Readonly<Row> & Pick<QueriedRow, "_row_id">;

export interface TypedQuery<Tables, N extends Name<Tables>> extends Omit<Query, "where"> {
  readonly table: N;
  readonly where?: Readonly<Partial<Tables[N]>>;
}

/** The client's methods that read and write rows, by the types of its tables. */
export interface TypedClient<Tables> {
  insert<N extends Name<Tables>>(
    table: N,
    rowId: string,
    columns?: Readonly<Partial<Tables[N]>>,
  ): Promise<Result<Delta>>;
  update<N extends Name<Tables>>(
    table: N,
    rowId: string,
    columns: Readonly<Partial<Tables[N]>>,
  ): Promise<Result<Delta>>;
  delete(table: Name<Tables>, rowId: string): Promise<Result<Delta>>;
  get<N extends Name<Tables>>(table: N, rowId: string): Promise<Result<Readonly<Tables[N]> | null>>;
  query<N extends Name<Tables>>(
    query: TypedQuery<Tables, N>,
  ): Promise<Result<readonly Found<Tables[N]>[]>>;
  watch<N extends Name<Tables>>(
    query: TypedQuery<Tables, N>,
    onRows: (rows: readonly Found<Tables[N]>[]) => void,
    onError?: (error: LakeSyncError) => void,
  ): () => void;
}

/**
 * The same client, by the types of its tables: declare these, so that its rows are of them.
 *
 * A value of another type than declared, which somebody else wrote, is read as it was written.
 */
export const typed = <Tables>(client: Client): TypedClient<Tables> =>
  client as unknown as TypedClient<Tables>;
