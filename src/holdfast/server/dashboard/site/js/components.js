// Components that several pages use.

import { createContext, html, useContext, useEffect, useRef, useState } from "./html.js";
import { useNow } from "./data.js";
import { formatMoney, formatRelativeTime, formatTime, formatValue } from "./format.js";
import { useShortcuts } from "./shortcuts.js";

const STATE_TONES = { completed: "good", failed: "bad", dead: "bad", running: "calm", waiting: "warn", pending: "", cancelled: "" };

// A run's state, and what keeps it from continuing.
export function StateBadge({ state, isPaused, isCancelling }) {
  return html`<span class="badge ${STATE_TONES[state] ?? ""}">${state}</span>
    ${isPaused ? html` <span class="badge warn">paused</span>` : null}
    ${isCancelling ? html` <span class="badge warn">cancelling</span>` : null}`;
}

export const Badge = ({ tone = "", children }) => html`<span class="badge ${tone}">${children}</span>`;

// "3 min ago", kept up to date; the exact time is its title.
export function RelativeTime({ at }) {
  const now = useNow();
  return at ? html`<time datetime=${at} title=${formatTime(at)}>${formatRelativeTime(at, now)}</time>` : null;
}

export const Money = ({ value }) => (value === null || value === undefined ? null : html`<span title="$${value}">${formatMoney(value)}</span>`);

// Returns whether the text was copied: a page loaded over plain HTTP from another machine may not.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
export const COPY_FAILED = "The browser does not let this page copy. Mark the text, and copy it by the keyboard.";

// A recorded value: always as text, whatever it contains.
export const Value = ({ value, label }) => html`<pre class="value mono" tabindex="0" role="region" aria-label=${label ?? "value"}>${formatValue(value)}</pre>`;

export function ProblemNote({ problem, refresh }) {
  if (!problem) return null;
  return html`<div class="note bad" role="alert">
    <strong>${problem.title || "That did not work"}</strong>
    <div>${problem.message}</div>
    ${refresh ? html`<div class="does"><button onClick=${refresh}>Ask again</button></div>` : null}
  </div>`;
}

export const Note = ({ tone = "", children }) => html`<div class="note ${tone}">${children}</div>`;
export const EmptyState = ({ children }) => html`<div class="empty">${children}</div>`;

// Shows the problem of an action in the dialog that contains it: the page below is neither visible nor read out.
const ProblemContext = createContext(null);

// A button for an action that takes a while and may fail: it is disabled meanwhile, and a problem is shown.
export function ActionButton({ action, done, tone = "", disabled = false, title, children }) {
  const [isBusy, setBusy] = useState(false);
  const reportProblem = useContext(ProblemContext) ?? ((problem) => problem && showToast(problem.message, "bad"));
  const onClick = async () => {
    setBusy(true);
    reportProblem(null);
    try {
      const answer = await action();
      if (done) showToast(typeof done === "function" ? done(answer) : done, "good");
    } catch (problem) {
      reportProblem(problem);
    } finally {
      setBusy(false);
    }
  };
  // type="button": by default, a button submits its form, and Enter in a field would press the first one.
  return html`<button type="button" class=${tone} disabled=${disabled || isBusy} title=${title} onClick=${onClick}>${children}</button>`;
}

// A dialog over the page. `onClose` is called when it is closed, also by Escape.
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  const isUnmounted = useRef(false);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    const dialog = element.current;
    if (!dialog.open) dialog.showModal();
    return () => {
      isUnmounted.current = true;
      dialog.close();
    };
  }, []);
  const close = () => isUnmounted.current || onClose(); // the browser reports the close of a removed dialog late, when another may be open
  return html`<dialog ref=${element} aria-label=${title} onClose=${close} onCancel=${close}>
    <h2>${title}</h2>
    <${ProblemContext.Provider} value=${setProblem}>${children}<//>
    <${ProblemNote} problem=${problem} />
  </dialog>`;
}

// Closes a dialog after the server's response, and returns whether it was still open: the reader may have closed it
// meanwhile, and opened another one.
export function useClose(onClose) {
  const isUnmounted = useRef(false);
  useEffect(() => () => (isUnmounted.current = true), []);
  return () => {
    if (isUnmounted.current) return false;
    onClose();
    return true;
  };
}

// Asks for confirmation of an action that cannot be undone.
export function ConfirmDialog({ title, text, confirmLabel, tone = "danger", action, onClose }) {
  const close = useClose(onClose);
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <p>${text}</p>
    <div class="does">
      <button onClick=${onClose}>Leave it</button>
      <${ActionButton} tone=${tone} action=${async () => {
        await action();
        close();
      }}>${confirmLabel}<//>
    </div>
  <//>`;
}

// Notes that disappear after a while, and that screen readers read out.
const toasts = { list: [], listeners: new Set(), next: 1 };
export function showToast(text, tone = "") {
  const one = { id: toasts.next++, text, tone };
  toasts.list = [...toasts.list, one];
  toasts.listeners.forEach((listener) => listener(toasts.list));
  setTimeout(() => {
    toasts.list = toasts.list.filter((other) => other !== one);
    toasts.listeners.forEach((listener) => listener(toasts.list));
  }, tone === "bad" ? 12000 : 5000);
}
export function ToastList() {
  const [list, setList] = useState(toasts.list);
  useEffect(() => {
    toasts.listeners.add(setList);
    return () => toasts.listeners.delete(setList);
  }, []);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${list.map((one) => html`<div key=${one.id} class="note ${one.tone}">${one.text}</div>`)}
  </div>`;
}

// The rows that the reader has marked, by id.
export function useMarks() {
  const [marks, setMarks] = useState(() => new Set());
  const mark = (ids, on) => setMarks((before) => new Set(on ? [...before, ...ids] : [...before].filter((id) => !ids.includes(id))));
  return { marks, mark, unmark: () => setMarks(new Set()) };
}

// The current row: it stays the same when others are added above it. Keys may arrive faster than the page is rendered,
// so they use `currentKey`, not what was rendered last.
export function useCurrentRow(rows, container, getKey = (row) => row.id) {
  const currentKey = useRef(null);
  const [shownKey, setShownKey] = useState(null);
  const findIndex = (key) => rows.findIndex((row) => getKey(row) === key);
  const choose = (index) => {
    currentKey.current = rows[index] === undefined ? null : getKey(rows[index]);
    setShownKey(currentKey.current);
    container.current?.children[index]?.scrollIntoView({ block: "nearest" });
  };
  const move = (by) => choose(Math.max(0, Math.min(rows.length - 1, findIndex(currentKey.current) + by)));
  return { at: findIndex(shownKey), choose, move, current: () => rows[findIndex(currentKey.current)] };
}

// A table with keyboard navigation: j and k move between rows, and Enter opens one. On a phone, each row is a card.
//   columns: [{ name, render: (row) => the content of its cell, tone: "number" | "wide" | "", header }]
//     header: shown above the column instead of its name
//     hiddenName: the name for screen readers of a column without a name
//   onOpen: (row) => the address that Enter opens
//   shortcuts: { x: ["label", (row) => what the key does with the current row] }
//   getTone: (row) => the class of its row
export function List({ label, columns, rows, getKey, onOpen, empty, shortcuts = {}, getTone = () => undefined }) {
  const body = useRef(null);
  const { at, current, move } = useCurrentRow(rows, body, getKey);
  const rowShortcuts = Object.entries({ ...(onOpen ? { Enter: ["open the row", onOpen] } : {}), ...shortcuts });
  useShortcuts({
    j: ["next row", () => move(1)],
    k: ["row before", () => move(-1)],
    ...Object.fromEntries(rowShortcuts.map(([key, [label, action]]) => [key, [label, () => current() && action(current())]])),
  });
  if (!rows.length) return html`<${EmptyState}>${empty}<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table class="list">
      <thead><tr>${columns.map((one) => html`<th class=${one.tone ?? ""} scope="col">${one.header ?? (one.name || html`<span class="out-of-sight">${one.hiddenName}</span>`)}</th>`)}</tr></thead>
      <tbody ref=${body}>
        ${rows.map((row, index) => html`<tr key=${getKey(row)} class=${getTone(row)} aria-selected=${index === at ? "true" : undefined}>
          ${columns.map((one) => html`<td class=${one.tone ?? ""} data-name=${one.name}><div class="cell">${one.render(row)}</div></td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}
