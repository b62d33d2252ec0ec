/** Icons, drawn with the colour of the text beside them; hidden from screen readers. */

import type { ReactNode, SVGProps } from "react";

const icon =
  (paths: ReactNode) =>
  (given: SVGProps<SVGSVGElement>): ReactNode => (
    <svg viewBox="0 0 20 20" width="20" height="20" fill="none" stroke="currentColor"
      strokeWidth="1.6" strokeLinecap="round" strokeLinejoin="round" aria-hidden {...given}>
      {paths}
    </svg>
  ); // prettier-ignore

export const Check = icon(<path d="m4.5 10.5 3.6 3.6 7.4-8.2" strokeWidth="2" />);
export const Plus = icon(<path d="M10 4v12M4 10h12" />);
export const Close = icon(<path d="m5 5 10 10M15 5 5 15" />);
export const Lock = icon(
  <>
    <rect x="4.5" y="9" width="11" height="7.5" rx="2" />
    <path d="M7 9V6.5a3 3 0 0 1 6 0V9" />
  </>,
);
export const Bin = icon(
  <path d="M4 5.5h12M8 5.5V4h4v1.5M5.5 5.5l.7 10.5h7.6l.7-10.5M8.4 8.5v4.5M11.6 8.5v4.5" />,
);
export const Camera = icon(
  <>
    <path d="M3 7.5A1.5 1.5 0 0 1 4.5 6h2l1.2-2h4.6l1.2 2h2A1.5 1.5 0 0 1 17 7.5V14.5a1.5 1.5 0 0 1-1.5 1.5h-11A1.5 1.5 0 0 1 3 14.5z" />
    <circle cx="10" cy="10.8" r="2.8" />
  </>,
);
export const Cloud = icon(
  <path d="M6 15.5h8.2a3.3 3.3 0 0 0 .5-6.560A4.8 4.8 0 0 0 5.5 8.2 3.7 3.7 0 0 0 6 15.5zM10 13.5V9.5M8.2 11.1 10 9.3l1.8 1.8" />,
);
export const Offline = icon(
  <path d="M3 3l14 14M7.2 4.9a4.8 4.8 0 0 1 7.5 4.06 3.3 3.3 0 0 1 2.1 5M14 15.5H6A3.7 3.7 0 0 1 5.4 8.3" />,
);
export const Warning = icon(<path d="M10 3.5 2.8 16h14.4zM10 8.5v3.5M10 14.2v.1" />);
export const Split = icon(
  <path d="M10 17V11M10 11C10 7 5 8 5 3.5M10 11c0-4 5-3 5-7.5M3 5.5l2-2 2 2M13 5.5l2-2 2 2" />,
);
export const Menu = icon(<path d="M3.5 6h13M3.5 10h13M3.5 14h13" />);
export const Back = icon(<path d="M12.5 4.5 7 10l5.5 5.5" />);
export const More = icon(
  <g fill="currentColor" stroke="none">
    <circle cx="4.5" cy="10" r="1.5" />
    <circle cx="10" cy="10" r="1.5" />
    <circle cx="15.5" cy="10" r="1.5" />
  </g>,
);
export const Note = icon(<path d="M4 6h12M4 10h12M4 14h7" />);
