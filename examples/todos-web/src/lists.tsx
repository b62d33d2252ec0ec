/** The lists, beside what is in the one that is shown. */

import { useMutation } from "@lakesync/client/react";
import { useState, type ReactNode } from "react";

import { BOTH, LISTS, lastPlace, newId, type List, type Todo } from "./data.js";
import { Lock, Plus } from "./icons.js";
import { ListIcon, nextIcon } from "./list-icons.js";
import type { Person } from "./session.js";
import { tell } from "./telling.js";

export function Lists({
  lists,
  todos,
  shown,
  show,
  nameOf,
}: {
  lists: readonly List[];
  todos: readonly Todo[];
  shown: string;
  show: (list: string) => void;
  nameOf: (keeper: string) => string;
}): ReactNode {
  return (
    <nav className="lists" aria-label="Lists">
      <ul>
        {lists.map((list) => {
          const open = todos.filter((todo) => todo.list === list.id && !todo.done).length;
          return (
            <li key={list.id}>
              <button
                className="list-link"
                aria-current={list.id === shown ? "page" : undefined}
                onClick={() => show(list.id)}
              >
                <ListIcon name={list.icon} />
                <span className="list-name">{list.name}</span>
                {list.keeper !== BOTH && (
                  <span
                    className="list-lock"
                    title={`Only ${nameOf(list.keeper)} changes this list`}
                  >
                    <Lock width={15} height={15} />
                    <span className="visually-hidden">, kept by {nameOf(list.keeper)}</span>
                  </span>
                )}
                <span className="count">
                  {open || ""}
                  <span className="visually-hidden"> open</span>
                </span>
              </button>
            </li>
          );
        })}
      </ul>
      <NewList lists={lists} show={show} />
    </nav>
  );
}

function NewList({
  lists,
  show,
}: {
  lists: readonly List[];
  show: (list: string) => void;
}): ReactNode {
  const { insert } = useMutation();
  const [name, setName] = useState("");
  const add = (): void => {
    if (!name.trim()) return;
    const id = newId();
    const icon = nextIcon(lists.length);
    setName("");
    tell(insert(LISTS, id, { name: name.trim(), icon, keeper: BOTH, place: lastPlace(lists) }));
    show(id);
  };
  return (
    <form
      className="new-list"
      onSubmit={(event) => {
        event.preventDefault();
        add();
      }}
    >
      <Plus />
      <input
        aria-label="New list"
        placeholder="New list"
        value={name}
        maxLength={60}
        onChange={(event) => setName(event.target.value)}
      />
    </form>
  );
}

export const nameIn =
  (people: readonly Person[], me: Person) =>
  (id: string): string =>
    id === me.id ? "you" : (people.find((person) => person.id === id)?.name ?? id);
