/** What needs a decision: edits that were not accepted, and values that both have changed. */

import type { Conflict, OutboxEntry, Result } from "@lakesync/client";
import { useLakeSync } from "@lakesync/client/react";
import { useState, type ReactNode } from "react";

import { LISTS, TODOS, type List, type Todo } from "./data.js";
import { noteOwn } from "./flashes.js";
import { Split, Warning } from "./icons.js";
import { authorOf, type Person } from "./session.js";
import { Avatar } from "./small.js";

export interface Subjects {
  readonly lists: readonly List[];
  readonly todos: readonly Todo[];
  readonly people: readonly Person[];
  readonly me: Person;
}

/** How many are shown above a list before one asks for all. */
const SHOWN_MAX = 2;

/** Columns that only the app knows of; nobody is asked about them. */
const OURS = new Set(["place", "keeper"]);

const NAMES: Readonly<Record<string, string>> = {
  title: "title",
  note: "note",
  price: "price",
  done: "tick",
  list: "list",
  photo: "photo",
  name: "name",
  icon: "icon",
};

const nameOf = (column: string): string => NAMES[column] ?? column;

/** What an edit or a conflict is about, as people call it. */
function subjectOf(table: string, rowId: string, { lists, todos }: Subjects): string {
  if (table.toLowerCase() === LISTS) return lists.find(({ id }) => id === rowId)?.name ?? "a list";
  return todos.find(({ id }) => id === rowId)?.title ?? "something that is gone";
}

export function Attention({
  refused,
  conflicts,
  subjects,
}: {
  refused: readonly OutboxEntry[];
  conflicts: readonly Conflict[];
  subjects: Subjects;
}): ReactNode {
  const [isOpen, setOpen] = useState(false);
  const cards = [
    ...refused.map((entry) => <Refused key={entry.deltaId} entry={entry} subjects={subjects} />),
    ...conflicts.map((each) => <Contested key={each.id} conflict={each} subjects={subjects} />),
  ];
  if (!cards.length) return null;
  const shown = isOpen ? cards : cards.slice(0, SHOWN_MAX);
  return (
    <section className="attention" aria-label="Needs a decision">
      {shown}
      {cards.length > SHOWN_MAX && (
        <button className="text-button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          {isOpen ? "Show fewer" : `${cards.length - SHOWN_MAX} more need a decision`}
        </button>
      )}
    </section>
  );
}

export const isShown = ({ column }: Conflict): boolean => !OURS.has(column);

// --- not accepted ---------------------------------------------------------------------------------

function Refused({ entry, subjects }: { entry: OutboxEntry; subjects: Subjects }): ReactNode {
  const client = useLakeSync();
  const texts = Object.entries(entry.columns).filter(
    ([name, value]) =>
      typeof value === "string" && !OURS.has(name) && name in NAMES && name !== "list",
  ) as [string, string][];
  const [drafts, setDrafts] = useState<Readonly<Record<string, string>>>({});
  const [failure, setFailure] = useState("");
  const changed = Object.fromEntries(
    texts.flatMap(([name, value]) => {
      const draft = drafts[name];
      return draft === undefined || draft === value ? [] : [[name, draft.trim() || null]];
    }),
  );
  const decide = async (decision: Promise<Result<void>>): Promise<void> => {
    noteOwn(entry.rowId);
    const decided = await decision;
    if (!decided.ok) setFailure(decided.error.message);
  };
  const isChanged = Object.keys(changed).length > 0;
  const mayAmend = texts.length > 0 && entry.code !== "FORBIDDEN";

  return (
    <article className="card" data-kind="refused">
      <h3>
        <Warning /> Not accepted: {whatOf(entry)} of “
        {subjectOf(entry.table, entry.rowId, subjects)}”
      </h3>
      <p>{reasonOf(entry, subjects)}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (isChanged) void decide(client.amend(entry.deltaId, changed));
        }}
      >
        {mayAmend &&
          texts.map(([name, value]) => (
            <label key={name} className="card-field">
              <span>{nameOf(name)}</span>
              <input
                value={drafts[name] ?? value}
                onChange={(event) => setDrafts({ ...drafts, [name]: event.target.value })}
              />
            </label>
          ))}
        {failure && <p role="alert">{failure}</p>}
        <div className="card-buttons">
          {mayAmend && (
            <button className="button" disabled={!isChanged}>
              Send as corrected
            </button>
          )}
          {entry.code !== "SCHEMA_ERROR" && (
            <button
              type="button"
              className="button second"
              onClick={() => void decide(client.retry(entry.deltaId))}
            >
              Try again
            </button>
          )}
          <button
            type="button"
            className="button second"
            onClick={() => void decide(client.discard(entry.deltaId))}
          >
            Take it back
          </button>
        </div>
      </form>
    </article>
  );
}

function whatOf({ op, columns }: OutboxEntry): string {
  if (op === "DELETE") return "the deletion";
  const names = Object.keys(columns).filter((name) => !OURS.has(name));
  if (op === "INSERT" || names.length > 2) return "the text";
  return names.length ? names.map((name) => `the ${nameOf(name)}`).join(" and ") : "the keeper";
}

function reasonOf(entry: OutboxEntry, { people, lists, todos }: Subjects): string {
  const keeper = [...todos, ...lists].find(({ id }) => id === entry.rowId)?.keeper;
  const name = people.find(({ id }) => id === keeper)?.name;
  if (entry.code === "FORBIDDEN") return `Only ${name ?? "the other"} changes this list now.`;
  const price = entry.columns.price;
  if (entry.code === "SCHEMA_ERROR" && typeof price === "string") {
    return `“${price}” is no price: write it like 3.50.`;
  }
  if (entry.code === "ROW_DELETED") return "It was deleted in the meantime.";
  return entry.reason;
}

// --- changed by both ------------------------------------------------------------------------------

function Contested({ conflict, subjects }: { conflict: Conflict; subjects: Subjects }): ReactNode {
  const client = useLakeSync();
  const [failure, setFailure] = useState("");
  const { me, people } = subjects;
  const other = authorOf(conflict.otherClient, people);
  const otherName = !other || other.id === me.id ? "Another window" : other.name;
  const subject = subjectOf(conflict.table, conflict.rowId, subjects);
  const decide = async (keep: "mine" | "theirs"): Promise<void> => {
    noteOwn(conflict.rowId);
    const resolved = await client.resolve(conflict.id, keep);
    if (!resolved.ok) setFailure(resolved.error.message);
  };
  const isDeletedByOther = conflict.deleted && !conflict.won;
  const isDeletedByMe = conflict.deleted && conflict.won;

  return (
    <article className="card" data-kind="contested">
      <h3>
        <Split /> Both changed the {nameOf(conflict.column)} of “{subject}”
      </h3>
      <div className="versions">
        <Version
          person={me}
          title="You"
          text={isDeletedByMe ? "Deleted" : shownValue(conflict, conflict.own, subjects)}
          stands={conflict.won}
          choose={() => void decide("mine")}
        />
        <Version
          person={other ?? me}
          title={otherName}
          text={
            conflict.hidden
              ? "No longer yours to see"
              : isDeletedByOther
                ? "Deleted"
                : shownValue(conflict, conflict.other, subjects)
          }
          stands={!conflict.won}
          choose={() => void decide("theirs")}
        />
      </div>
      {failure && <p role="alert">{failure}</p>}
    </article>
  );
}

function shownValue({ table, column }: Conflict, value: unknown, { lists }: Subjects): string {
  if (table.toLowerCase() === TODOS && column === "done")
    return value === true ? "Done" : "Not done";
  if (column === "list") return lists.find(({ id }) => id === value)?.name ?? "another list";
  if (column === "photo") return value ? "Their photo" : "No photo";
  return typeof value === "string" || typeof value === "number"
    ? String(value) || "Nothing"
    : "Nothing";
}

const Version = ({
  person,
  title,
  text,
  stands,
  choose,
}: {
  person: Person;
  title: string;
  text: string;
  stands: boolean;
  choose: () => void;
}): ReactNode => (
  <div className="version" data-stands={stands || undefined}>
    <div className="version-who">
      <Avatar person={person} /> {title}
      {stands && <small>shown now</small>}
    </div>
    <p className="version-text">{text}</p>
    <button className="button second" onClick={choose}>
      Keep this
    </button>
  </div>
);
