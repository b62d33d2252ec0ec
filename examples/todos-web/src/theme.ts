/** Light, dark, or as the device is. */

import { useState } from "react";

export type Theme = "auto" | "light" | "dark";
export const THEMES: readonly Theme[] = ["auto", "light", "dark"];
const KEY = "tandem theme";

function kept(): Theme {
  try {
    const theme = localStorage.getItem(KEY) as Theme | null;
    return theme && THEMES.includes(theme) ? theme : "auto";
  } catch {
    return "auto";
  }
}

export function applyTheme(theme = kept()): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function useTheme(): readonly [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState(kept);
  const choose = (next: Theme): void => {
    setTheme(next);
    applyTheme(next);
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // It lasts as long as the page does.
    }
  };
  return [theme, choose];
}
