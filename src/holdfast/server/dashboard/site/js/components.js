// What several pages are made of.

import { createContext, html, useContext, useEffect, useRef, useState } from "./html.js";
import { ago, asText, clock, money } from "./format.js";
import { useNow } from "./data.js";
import { useKeys } from "./shortcuts.js";

const STATE_TONES = { completed: "good", failed: "bad", dead: "bad", running: "calm", waiting: "warn", pending: "", cancelled: "" };

// A run's state, and what keeps it from going on.
export function State({ state, paused, cancelling }) {
  return html`<span class="badge ${STATE_TONES[state] ?? ""}">${state}</span>
    ${paused ? html` <span class="badge warn">paused</span>` : null}
    ${cancelling ? html` <span class="badge warn">cancelling</span>` : null}`;
}

export const Badge = ({ tone = "", children }) => html`<span class="badge ${tone}">${children}</span>`;

// "3 min ago", which moves on; the moment itself when pointed at.
export function Ago({ at }) {
  const now = useNow();
  return at ? html`<time datetime=${at} title=${clock(at)}>${ago(at, now)}</time>` : null;
}

export const Money = ({ of }) => (of === null || of === undefined ? null : html`<span title="$${of}">${money(of)}</span>`);

// Whether a text could be copied: a page that has come over plain HTTP from another machine may not.
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
export const NOT_COPIED = "The browser does not let this page copy. Mark the text, and copy it by the keyboard.";

// A recorded value: always as text, whatever it holds.
export const Value = ({ of, label }) => html`<pre class="value mono" tabindex="0" role="region" aria-label=${label ?? "value"}>${asText(of)}</pre>`;

export function ProblemNote({ problem, again }) {
  if (!problem) return null;
  return html`<div class="note bad" role="alert">
    <strong>${problem.title || "That did not work"}</strong>
    <div>${problem.message}</div>
    ${again ? html`<div class="does"><button onClick=${again}>Ask again</button></div>` : null}
  </div>`;
}

export const Note = ({ tone = "", children }) => html`<div class="note ${tone}">${children}</div>`;
export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;

// Who is told what went wrong with an act: the dialog that it is in, whose reader neither sees nor hears what is behind it.
const Complaints = createContext(null);

// A button whose act takes a while, and may fail: it is off meanwhile, and what went wrong is told.
export function Act({ act, done, tone = "", disabled = false, title, children }) {
  const [busy, setBusy] = useState(false);
  const complain = useContext(Complaints) ?? ((problem) => problem && toast(problem.message, "bad"));
  const click = async () => {
    setBusy(true);
    complain(null);
    try {
      const answer = await act();
      if (done) toast(typeof done === "function" ? done(answer) : done, "good");
    } catch (problem) {
      complain(problem);
    } finally {
      setBusy(false);
    }
  };
  // Not one that sends a form, which buttons are unless they say so: Enter in a field would press the first of those.
  return html`<button type="button" class=${tone} disabled=${disabled || busy} title=${title} onClick=${click}>${children}</button>`;
}

// A dialog over the page. `onClose` is told when it is closed, by Escape too.
export function Dialog({ title, onClose, children }) {
  const place = useRef(null);
  const gone = useRef(false);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    const dialog = place.current;
    if (!dialog.open) dialog.showModal();
    return () => {
      gone.current = true;
      dialog.close();
    };
  }, []);
  const close = () => gone.current || onClose(); // of one that is gone, a browser tells late, when another may be open
  return html`<dialog ref=${place} aria-label=${title} onClose=${close} onCancel=${close}>
    <h2>${title}</h2>
    <${Complaints.Provider} value=${setProblem}>${children}<//>
    <${ProblemNote} problem=${problem} />
  </dialog>`;
}

// Closes a dialog when the server has answered, and says whether it was still there: the reader may have closed it
// meanwhile, and have opened another one.
export function useClosing(onClose) {
  const gone = useRef(false);
  useEffect(() => () => (gone.current = true), []);
  return () => {
    if (gone.current) return false;
    onClose();
    return true;
  };
}

// Asks before something that cannot be taken back is done.
export function Confirm({ title, words, yes, tone = "danger", act, onClose }) {
  const close = useClosing(onClose);
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p>${words}</p>
    <div class="does">
      <button onClick=${onClose}>Leave it</button>
      <${Act} tone=${tone} act=${async () => {
        await act();
        close();
      }}>${yes}<//>
    </div>
  <//>`;
}

// Notes that come and go, and that screen readers read out.
const toasts = { list: [], listeners: new Set(), next: 1 };
export function toast(words, tone = "") {
  const one = { id: toasts.next++, words, tone };
  toasts.list = [...toasts.list, one];
  toasts.listeners.forEach((tell) => tell(toasts.list));
  setTimeout(() => {
    toasts.list = toasts.list.filter((other) => other !== one);
    toasts.listeners.forEach((tell) => tell(toasts.list));
  }, tone === "bad" ? 12000 : 5000);
}
export function Toasts() {
  const [list, setList] = useState(toasts.list);
  useEffect(() => {
    toasts.listeners.add(setList);
    return () => toasts.listeners.delete(setList);
  }, []);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${list.map((one) => html`<div key=${one.id} class="note ${one.tone}">${one.words}</div>`)}
  </div>`;
}

// Which rows the reader has marked, by their ids.
export function useMarks() {
  const [marks, setMarks] = useState(() => new Set());
  const mark = (ids, on) => setMarks((before) => new Set(on ? [...before, ...ids] : [...before].filter((id) => !ids.includes(id))));
  return { marks, mark, unmark: () => setMarks(new Set()) };
}

// Which of some rows the reader is at: the same one when others come above it. Keys may come faster than the page is
// drawn, so they go by what is kept, and not by what was drawn last.
export function useChosen(rows, place, keyOf = (row) => row.id) {
  const kept = useRef(null);
  const [here, setHere] = useState(null);
  const indexOf = (key) => rows.findIndex((row) => keyOf(row) === key);
  const choose = (index) => {
    kept.current = rows[index] === undefined ? null : keyOf(rows[index]);
    setHere(kept.current);
    place.current?.children[index]?.scrollIntoView({ block: "nearest" });
  };
  const move = (by) => choose(Math.max(0, Math.min(rows.length - 1, indexOf(kept.current) + by)));
  return { at: indexOf(here), choose, move, current: () => rows[indexOf(kept.current)] };
}

// A table whose rows can be gone through with j and k, and opened with Enter. On a phone every row is a card.
//   columns: [{ name, of: (row) => what stands there, tone: "number" | "wide" | "", head: what stands above, if not the name }]
//     a column without a name has one that is not seen: unseen
//   open: (row) => where Enter goes to
//   keys: { x: ["words", (row) => what the key does with the row where the reader is] }
//   toneOf: (row) => the class of its row
export function List({ label, columns, rows, keyOf, open, empty, keys = {}, toneOf = () => undefined }) {
  const body = useRef(null);
  const { at, current, move } = useChosen(rows, body, keyOf);
  const onRow = Object.entries({ ...(open ? { Enter: ["open the row", open] } : {}), ...keys });
  useKeys({
    j: ["next row", () => move(1)],
    k: ["row before", () => move(-1)],
    ...Object.fromEntries(onRow.map(([key, [words, act]]) => [key, [words, () => current() && act(current())]])),
  });
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class="list">
      <thead><tr>${columns.map((one) => html`<th class=${one.tone ?? ""} scope="col">${one.head ?? (one.name || html`<span class="out-of-sight">${one.unseen}</span>`)}</th>`)}</tr></thead>
      <tbody ref=${body}>
        ${rows.map((row, index) => html`<tr key=${keyOf(row)} class=${toneOf(row)} aria-selected=${index === at ? "true" : undefined}>
          ${columns.map((one) => html`<td class=${one.tone ?? ""} data-name=${one.name}><div class="cell">${one.of(row)}</div></td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}
