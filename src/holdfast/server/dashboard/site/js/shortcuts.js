// Keyboard shortcuts: all of them are registered here, so that the help lists every one.

import { useEffect } from "./html.js";

const shortcuts = new Map(); // keys, as in "g r" -> { label, action }
let pendingKeys = "";
let timer = 0;

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]") !== null;

// Enter on a button or a link activates that button or link.
const isPressing = (event) => event.key === "Enter" && event.target.closest?.("a, button, summary") !== null;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || isPressing(event) || document.querySelector("dialog[open]")) return;
  const typed = pendingKeys ? `${pendingKeys} ${event.key}` : event.key;
  clearTimeout(timer);
  pendingKeys = "";
  const found = shortcuts.get(typed);
  if (found) {
    event.preventDefault();
    found.action(event);
  } else if ([...shortcuts.keys()].some((one) => one.startsWith(`${typed} `))) {
    pendingKeys = typed;
    timer = setTimeout(() => (pendingKeys = ""), 900);
  }
});

export const listShortcuts = () => [...shortcuts].map(([keys, { label }]) => ({ keys, label })).filter((one) => one.label);

// Registers shortcuts while the calling component is on the page: useShortcuts({ "g r": ["go to runs", action] }).
export function useShortcuts(labeledActions) {
  useEffect(() => {
    const added = Object.entries(labeledActions).map(([keys, [label, action]]) => [keys, { label, action }]);
    for (const [keys, shortcut] of added) shortcuts.set(keys, shortcut);
    return () => {
      for (const [keys, shortcut] of added) if (shortcuts.get(keys) === shortcut) shortcuts.delete(keys);
    };
  });
}
