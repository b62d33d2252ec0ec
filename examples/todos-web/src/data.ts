/** What the two have: lists and todos, as rows of the gateway's tables. */

import type { Client, QueriedRow, Transaction } from "@lakesync/client";

export const LISTS = "lists";
export const TODOS = "todos";

/** Who may change a list: both, or one of the two, by whose name the rules of the gateway go. */
export type Keeper = string;
export const BOTH: Keeper = "both";

export interface List {
  readonly id: string;
  readonly name: string;
  readonly icon: string;
  readonly keeper: Keeper;
  readonly place: number;
}

export interface Todo {
  readonly id: string;
  readonly list: string;
  readonly title: string;
  readonly note: string;
  /** As somebody wrote it: it may be refused. */
  readonly price: string;
  readonly done: boolean;
  /** The reference of an attachment; empty without one. */
  readonly photo: string;
  readonly keeper: Keeper;
  readonly place: number;
}

const text = (value: unknown): string =>
  typeof value === "string" ? value : typeof value === "number" ? String(value) : "";

/** A place among others; what has none is last. */
const place = (value: unknown): number =>
  typeof value === "number" ? value : Number.MAX_SAFE_INTEGER;

export const listOf = (row: QueriedRow): List => ({
  id: row._row_id,
  name: text(row.name),
  icon: text(row.icon),
  keeper: text(row.keeper) || BOTH,
  place: place(row.place),
});

export const todoOf = (row: QueriedRow): Todo => ({
  id: row._row_id,
  list: text(row.list),
  title: text(row.title),
  note: text(row.note),
  price: text(row.price),
  done: row.done === true,
  photo: text(row.photo),
  keeper: text(row.keeper) || BOTH,
  place: place(row.place),
});

/** Rows as the app has them; the same objects for the rows that stayed the same. */
export function rowsOf<T>(make: (row: QueriedRow) => T): (rows: readonly QueriedRow[]) => T[] {
  const made = new WeakMap<QueriedRow, T>();
  return (rows) =>
    rows.map((row) => {
      const known = made.get(row);
      if (known) return known;
      const fresh = make(row);
      made.set(row, fresh);
      return fresh;
    });
}

export const newId = (): string => crypto.randomUUID();

export type TodoColumns = Partial<Omit<Todo, "id">>;

/** The columns of a row: without its id, and with null for what is empty. */
export const columnsOf = ({ ...given }: Partial<Todo>): Record<string, unknown> => {
  const entries = Object.entries(given).filter(([name]) => name !== "id");
  return Object.fromEntries(entries.map(([name, value]) => [name, value === "" ? null : value]));
};

/** A place behind all others; between two it is their mean. */
export const lastPlace = (all: readonly { readonly place: number }[]): number =>
  all.reduce(
    (most, one) => (one.place < Number.MAX_SAFE_INTEGER ? Math.max(most, one.place) : most),
    0,
  ) + 1;

/** The place of a todo that moves by one, up or down; null at the end. */
export function movedPlace(all: readonly Todo[], id: string, by: -1 | 1): number | null {
  const at = all.findIndex((todo) => todo.id === id);
  const next = all[at + by];
  if (at < 0 || !next) return null;
  const beyond = all[at + 2 * by];
  return beyond ? (next.place + beyond.place) / 2 : next.place + by;
}

/** Let a list be changed by both, or by one: its todos follow, in the same transaction. */
export const keep = (client: Client, list: List, todos: readonly Todo[], keeper: Keeper) =>
  client.transaction((edits) => {
    edits.update(LISTS, list.id, { keeper });
    for (const { id } of todos) edits.update(TODOS, id, { keeper });
  });

export const removeList = (client: Client, list: List, todos: readonly Todo[]) =>
  client.transaction((edits) => {
    for (const { id } of todos) edits.delete(TODOS, id);
    edits.delete(LISTS, list.id);
  });

export const removeTodos = (client: Client, todos: readonly Todo[]) =>
  client.transaction((edits) => {
    for (const { id } of todos) edits.delete(TODOS, id);
  });

export const restoreTodos = (client: Client, todos: readonly Todo[]) =>
  client.transaction((edits) => {
    for (const todo of todos) edits.insert(TODOS, todo.id, columnsOf(todo));
  });

// --- an example -----------------------------------------------------------------------------------

type Line = readonly [title: string, more?: Partial<Todo>];

const EXAMPLE: readonly { name: string; icon: string; todos: readonly Line[] }[] = [
  {
    name: "Groceries",
    icon: "basket",
    todos: [
      ["Oat milk, two of them", { price: "3.90" }],
      ["Sourdough", { price: "4.50", note: "The one with seeds, from the corner bakery." }],
      ["Tomatoes", { price: "2.80" }],
      ["Coffee beans", { price: "11.00" }],
      ["Dish soap", { done: true }],
    ],
  },
  {
    name: "The flat",
    icon: "leaf",
    todos: [
      ["Fix the dripping tap"],
      ["Hang the shelf in the hall", { note: "The drill is at Marta’s." }],
      ["Water the plants", { done: true }],
    ],
  },
  {
    name: "Weekend in the hills",
    icon: "hills",
    todos: [["Book the hut", { price: "84.00" }], ["Print the train tickets"], ["Rain jackets"]],
  },
];

/** Fill empty lists with something to look at; returns the first list. */
export async function fillWithExample(client: Client): Promise<string> {
  const ids = EXAMPLE.map(newId);
  await client.transaction((edits) => {
    EXAMPLE.forEach(({ name, icon, todos }, at) => {
      const list = ids[at]!;
      edits.insert(LISTS, list, { name, icon, keeper: BOTH, place: at + 1 });
      todos.forEach(([title, more], nth) =>
        addTodo(edits, { ...more, list, title, place: nth + 1 }),
      );
    });
  });
  return ids[0]!;
}

export function addTodo(edits: Transaction, given: TodoColumns): string {
  const id = newId();
  edits.insert(TODOS, id, columnsOf({ done: false, keeper: BOTH, ...given }));
  return id;
}
