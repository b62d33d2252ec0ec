/** Who uses this window: the demo's way to sign in. */

import type { ReactNode } from "react";

import type { Person } from "./session.js";
import { Avatar, Logo } from "./small.js";

export function Chooser({
  people,
  choose,
}: {
  people: readonly Person[];
  choose: (person: string) => void;
}): ReactNode {
  return (
    <main className="chooser">
      <Logo />
      <h1>Who is at this window?</h1>
      <p className="lead">
        Tandem keeps lists for two. Open this page in a second window and be the other one there:
        what one writes, the other sees.
      </p>
      <div className="choices">
        {people.map((person) => (
          <button
            key={person.id}
            className="choice"
            data-person={person.id}
            onClick={() => choose(person.id)}
          >
            <Avatar person={person} size="large" />
            <span>I am {person.name}</span>
          </button>
        ))}
      </div>
      <p className="quiet">The lists are kept in this browser, and work without a network.</p>
    </main>
  );
}
