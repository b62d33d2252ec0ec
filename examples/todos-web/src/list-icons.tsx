/** Pictures of lists: drawn, so that they look the same everywhere, each with a hue of its own. */

import type { ReactNode } from "react";

const DRAWN = {
  basket: [
    150,
    <path key="" d="M3.5 8.5h13l-1.4 7.2H4.9zM7 8.5l2-5M13 8.5l-2-5M8.2 11.3v1.8M11.8 11.3v1.8" />,
  ],
  leaf: [
    120,
    <path key="" d="M5 15.5c-1.5-6 2-11 11-11 .3 8-4 12.5-10 10M4 17c1.5-4 4-6.5 7.5-8.5" />,
  ],
  hills: [215, <path key="" d="M2.5 16 8 6.5l3.6 6.2 1.9-2.9 4 6.2zM13.5 5.5h.1" />],
  gift: [
    345,
    <path
      key=""
      d="M4 9.5h12v6.5H4zM3.3 6.5h13.4v3H3.3zM10 6.5V16M10 6.5C6 6.5 6 3 8 3s2 3.5 2 3.5S10 3 12 3s2 3.5-2 3.5z"
    />,
  ],
  wrench: [
    35,
    <path
      key=""
      d="m4 16 6.5-6.5M12.8 3.7a3.6 3.6 0 0 0-2.5 4.7l1.3 1.3a3.6 3.6 0 0 0 4.7-2.5l-2.3.8-1.8-1.8z"
    />,
  ],
  book: [
    265,
    <path
      key=""
      d="M10 5.5C8.5 4.3 6.3 4 3.5 4v11c2.8 0 5 .3 6.5 1.5 1.5-1.2 3.7-1.5 6.5-1.5V4c-2.8 0-5 .3-6.5 1.5zM10 5.5v11"
    />,
  ],
  film: [
    10,
    <path
      key=""
      d="M3.5 5h13v10h-13zM7 5v10M13 5v10M3.5 8.3H7M3.5 11.7H7M13 8.3h3.5M13 11.7h3.5"
    />,
  ],
  pen: [190, <path key="" d="m4 16 .8-3.3L13 4.5l2.5 2.5-8.2 8.2zM11.5 6l2.5 2.5" />],
} as const satisfies Record<string, readonly [hue: number, path: ReactNode]>;

type Name = keyof typeof DRAWN;

const NAMES = Object.keys(DRAWN) as Name[];
const isName = (name: string): name is Name => name in DRAWN;

/** The picture of the next new list. */
export const nextIcon = (count: number): string => NAMES[count % NAMES.length]!;

export function ListIcon({
  name,
  size = "small",
}: {
  name: string;
  size?: "small" | "large";
}): ReactNode {
  const [hue, path] = DRAWN[isName(name) ? name : "pen"];
  return (
    <span className={`list-icon ${size}`} style={{ "--hue": hue }} aria-hidden>
      <svg viewBox="0 0 20 20" fill="none" stroke="currentColor" strokeWidth="1.5"
        strokeLinecap="round" strokeLinejoin="round">
        {path}
      </svg>
    </span>
  ); // prettier-ignore
}
