/** The todos of a list: a line for each, one to add another, and what is done below. */

import { useMutation } from "@lakesync/client/react";
import {
  startTransition,
  useOptimistic,
  useState,
  type KeyboardEvent,
  type ReactNode,
  type RefObject,
} from "react";

import { tell } from "./telling.js";
import { addTodo, lastPlace, type List, type Todo } from "./data.js";
import { Camera, Check, Cloud, Note, Plus, Split, Warning } from "./icons.js";

export interface Marks {
  readonly waiting: ReadonlySet<string>;
  readonly refused: ReadonlySet<string>;
  readonly contested: ReadonlySet<string>;
  readonly flashes: ReadonlySet<string>;
}

export interface TodosProps {
  readonly list: List;
  readonly todos: readonly Todo[];
  readonly shown: string;
  readonly mayEdit: boolean;
  readonly marks: Marks;
  readonly show: (todo: string) => void;
  readonly toggle: (todo: Todo) => Promise<unknown>;
  readonly onKey: (event: KeyboardEvent, todo: Todo) => void;
  readonly clearDone: () => void;
  readonly field: RefObject<HTMLInputElement | null>;
}

export function Todos(given: TodosProps): ReactNode {
  const open = given.todos.filter(({ done }) => !done);
  const done = given.todos.filter((todo) => todo.done);
  return (
    <>
      {given.mayEdit && <NewTodo {...given} />}
      {!given.todos.length && (
        <p className="empty">
          {given.mayEdit ? "Nothing here yet. What is to be done?" : "Nothing here yet."}
        </p>
      )}
      {given.todos.length > 0 && !open.length && <p className="empty">All done.</p>}
      <ul className="todos" aria-label="To do">
        {open.map((todo) => (
          <Line key={todo.id} todo={todo} {...given} />
        ))}
      </ul>
      {done.length > 0 && (
        <section className="done" aria-label="Done">
          <header>
            <h2>Done</h2>
            {given.mayEdit && (
              <button className="text-button" onClick={given.clearDone}>
                Clear {done.length}
              </button>
            )}
          </header>
          <ul className="todos">
            {done.map((todo) => (
              <Line key={todo.id} todo={todo} {...given} />
            ))}
          </ul>
        </section>
      )}
    </>
  );
}

function NewTodo({ list, todos, field }: TodosProps): ReactNode {
  const { transaction } = useMutation();
  const [title, setTitle] = useState("");
  const add = (): void => {
    if (!title.trim()) return;
    setTitle("");
    const added = {
      list: list.id,
      keeper: list.keeper,
      title: title.trim(),
      place: lastPlace(todos),
    };
    tell(transaction((edits) => void addTodo(edits, added)));
  };
  return (
    <form
      className="new-todo"
      onSubmit={(event) => {
        event.preventDefault();
        add();
      }}
    >
      <Plus />
      <input
        ref={field}
        aria-label={`Add to ${list.name}`}
        placeholder="Add something"
        value={title}
        maxLength={200}
        enterKeyHint="done"
        onChange={(event) => setTitle(event.target.value)}
      />
      <kbd className="hint" aria-hidden>
        N
      </kbd>
    </form>
  );
}

function Line({
  todo,
  shown,
  mayEdit,
  marks,
  show,
  toggle,
  onKey,
}: TodosProps & { todo: Todo }): ReactNode {
  const price = Number(todo.price);
  // A box is ticked at once, and not only once that is on the disk.
  const [isDone, setDone] = useOptimistic(todo.done);
  const tick = (): void =>
    startTransition(async () => {
      setDone(!todo.done);
      await toggle(todo);
    });
  return (
    <li
      className="todo"
      data-todo={todo.id}
      data-done={isDone || undefined}
      data-flash={marks.flashes.has(todo.id) || undefined}
      data-shown={todo.id === shown || undefined}
      onKeyDown={(event) => onKey(event, todo)}
    >
      <label className="tick">
        <input
          type="checkbox"
          checked={isDone}
          disabled={!mayEdit}
          aria-label={todo.title || "Without a title"}
          onChange={tick}
        />
        <span className="tick-box" aria-hidden>
          <Check />
        </span>
      </label>
      <button className="todo-title" onClick={() => show(todo.id)}>
        <span>{todo.title || <em>Without a title</em>}</span>
        <span className="marks">
          {todo.note && <Mark words="has a note" icon={<Note width={16} height={16} />} />}
          {todo.photo && <Mark words="has a photo" icon={<Camera width={16} height={16} />} />}
          {marks.refused.has(todo.id) && (
            <Mark
              kind="refused"
              words="was not accepted"
              icon={<Warning width={16} height={16} />}
            />
          )}
          {marks.contested.has(todo.id) && (
            <Mark
              kind="contested"
              words="both changed it"
              icon={<Split width={16} height={16} />}
            />
          )}
          {marks.waiting.has(todo.id) && (
            <Mark kind="waiting" words="waits to be sent" icon={<Cloud width={16} height={16} />} />
          )}
        </span>
        {todo.price && (
          <span className="price">{Number.isFinite(price) ? price.toFixed(2) : todo.price}</span>
        )}
      </button>
    </li>
  );
}

const Mark = ({
  kind,
  words,
  icon,
}: {
  kind?: string;
  words: string;
  icon: ReactNode;
}): ReactNode => (
  <span className="mark" data-kind={kind} title={words}>
    {icon}
    <span className="visually-hidden">, {words}</span>
  </span>
);
