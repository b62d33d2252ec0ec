/**
 * Watched queries: an answer that follows each commit.
 *
 * Of a commit only the rows that it wrote are looked at, however many the table has. Of a query with a
 * limit some more rows are held than are shown; only where these run out, it is read again.
 */

import { LakeSyncError } from "./errors.js";
import {
  answer,
  asked,
  compared,
  found,
  readingOf,
  shown,
  type Asked,
  type Found,
  type QueriedRow,
  type Query,
  type Source,
} from "./query.js";
import { fold, tableOf, type Row } from "./state.js";

/** What a commit, or another tab, has changed. */
export interface Changes {
  /** The tables, by their keys. */
  readonly tables: ReadonlySet<string>;
  /** The rows of them, null for what is gone. A table of which none is here is to be read again. */
  readonly rows: ReadonlyMap<string, Row | null>;
}

const SPARE_ROWS_MIN = 50;

export class Watched {
  private question: Asked | null = null;
  /** The first rows of the answer, in their order. */
  private held: Found[] = [];
  private byKey = new Map<string, Found>();
  /** Whether there are no other rows. */
  private isWhole = false;
  private last: readonly QueriedRow[] | null = null;
  /** What changes while the rows are read; null if they are not. */
  private missed: Changes[] | null = null;
  private isOver = false;

  constructor(
    private readonly source: Source,
    private readonly query: Query,
    private readonly onRows: (rows: readonly QueriedRow[]) => void,
    private readonly onError: (error: LakeSyncError) => void = () => undefined,
  ) {
    void this.read();
  }

  end(): void {
    this.isOver = true;
  }

  /** Follow what has changed. */
  hear(changes: Changes): void {
    if (this.isOver || !changes.tables.has(fold(this.query.table))) return;
    if (this.missed) this.missed.push(changes);
    else if (this.follow(changes)) this.tell();
    else void this.read();
  }

  private async read(): Promise<void> {
    this.missed = [];
    try {
      const question = asked(this.source.memory, this.query);
      const limit = question.limit + Math.max(question.limit, SPARE_ROWS_MIN);
      this.hold(question, await answer(this.source, { ...question, limit }), limit);
    } catch (error) {
      this.missed = null;
      this.question = null;
      if (!(error instanceof LakeSyncError)) throw error;
      if (!this.isOver) this.onError(error);
      return;
    }
    const { missed } = this;
    this.missed = null;
    if (this.isOver) return;
    if (missed.every((changes) => this.follow(changes))) this.tell();
    else await this.read();
  }

  private hold(question: Asked, rows: Found[], limit: number): void {
    const isSame = this.question?.reading.types === question.reading.types;
    this.held = rows.map((each) => {
      const before = isSame && this.byKey.get(each.key);
      return before && isEqual(before, each) ? before : each;
    });
    this.byKey = new Map(this.held.map((each) => [each.key, each]));
    this.isWhole = rows.length < limit;
    this.question = question;
  }

  /** Take over what has changed; false if the rows are to be read again. */
  private follow({ rows }: Changes): boolean {
    const { question } = this;
    // The schema of a table that has no rows yet changes nothing that anybody would be told of.
    if (!question || !this.readsStill(question)) return false;
    let isListed = false;
    for (const [key, row] of rows) {
      if (tableOf(key) !== question.reading.table) continue;
      isListed = true;
      this.replace(question, key, row && found(question, key, row));
    }
    return isListed && (this.isWhole || this.held.length >= question.limit);
  }

  /** Whether the table is read as it was when the question was asked. */
  private readsStill({ reading }: Asked): boolean {
    const now = readingOf(this.source.memory, this.query.table);
    return now.types === reading.types && now.deleteWins === reading.deleteWins;
  }

  private replace(question: Asked, key: string, after: Found | null): void {
    const before = this.byKey.get(key);
    if (before && after && isEqual(before, after)) return;
    if (before) {
      this.held.splice(this.placeOf(question, before), 1);
      this.byKey.delete(key);
    }
    if (!after) return;
    const place = this.placeOf(question, after);
    if (place === this.held.length && !this.isWhole) return; // others may be before it
    this.held.splice(place, 0, after);
    this.byKey.set(key, after);
    this.trim(question);
  }

  private trim({ limit }: Asked): void {
    if (this.held.length <= limit + 2 * Math.max(limit, SPARE_ROWS_MIN)) return;
    this.byKey.delete(this.held.pop()!.key);
    this.isWhole = false;
  }

  /** Where a row is in the answer, or would be. */
  private placeOf(question: Asked, row: Found): number {
    const compare = compared(question);
    let [from, to] = [0, this.held.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (compare(this.held[middle]!, row) < 0) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  private tell(): void {
    const question = this.question!;
    const before = this.last;
    const rows = this.held
      .slice(0, question.limit)
      .map((each) => (each.shown ??= shown(question, each)));
    const isSame =
      before?.length === rows.length && rows.every((row, place) => row === before[place]);
    this.last = rows;
    // What an app throws is not the fault of the edit that it is told of.
    if (!isSame) queueMicrotask(() => this.isOver || this.onRows(rows));
  }
}

const isEqual = (one: Found, other: Found): boolean =>
  one.columns.size === other.columns.size &&
  [...one.columns].every(([name, text]) => other.columns.get(name) === text);
