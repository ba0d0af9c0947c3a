// The keyboard: one place that knows which key does what, so that the help tells all of it.

import { useEffect } from "./html.js";

const known = new Map(); // keys, as in "g r" -> { words, act }
let pending = "";
let timer = 0;

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]") !== null;

// Enter on a button or a link is that button's or link's.
const isPressing = (event) => event.key === "Enter" && event.target.closest?.("a, button, summary") !== null;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || isPressing(event) || document.querySelector("dialog[open]")) return;
  const typed = pending ? `${pending} ${event.key}` : event.key;
  clearTimeout(timer);
  pending = "";
  const found = known.get(typed);
  if (found) {
    event.preventDefault();
    found.act(event);
  } else if ([...known.keys()].some((one) => one.startsWith(`${typed} `))) {
    pending = typed;
    timer = setTimeout(() => (pending = ""), 900);
  }
});

export const shortcuts = () => [...known].map(([keys, { words }]) => ({ keys, words })).filter((one) => one.words);

// Lets keys do something as long as the part that says so is on the page: useKeys({ "g r": ["go to runs", act] }).
export function useKeys(wanted) {
  useEffect(() => {
    const mine = Object.entries(wanted).map(([keys, [words, act]]) => [keys, { words, act }]);
    for (const [keys, what] of mine) known.set(keys, what);
    return () => {
      for (const [keys, what] of mine) if (known.get(keys) === what) known.delete(keys);
    };
  });
}
