// Queues with limits: what runs, what waits and why, and the limits set by hand.

import { html, useState } from "../html.js";
import { encodePart, patch, post } from "../api.js";
import { Badge, Dialog, List, ProblemNote, RelativeTime, useClose } from "../components.js";
import { useGet } from "../data.js";
import { isPositiveInteger, splitList, TextInput, useSubmit } from "../form-controls.js";
import { formatCount } from "../format.js";
import { ScopedActionButton, ScopedButton, ScopeNote } from "../scopes.js";

export function QueuesPage({ caller }) {
  const { data, problem, refresh } = useGet("/v1/queues");
  const [dialog, setDialog] = useState(null);
  const buildAction = (one, verb) => () => post(`/v1/queues/${encodePart(one.name)}/${verb}`, {}).then(refresh);
  return html`<header><h1>Queues</h1>
      <div class="right"><${ScopedButton} caller=${caller} scope="operate" onClick=${() => setDialog({ name: "" })}>Limit a queue<//></div>
    </header>
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    <${ScopeNote} caller=${caller} scope="operate" hint="You can look, but change nothing." />
    ${data ? html`<${List} label="queues" rows=${data.items} getKey=${(one) => one.name}
      empty=${html`<p>No queue has limits.</p><p>Every run is in a queue; one with limits is made in code, <code>@workflow(queue=Queue("api", concurrency=10))</code>, or here, by hand. Its limits hold for all workers together.</p>`}
      columns=${[
        { name: "Queue", tone: "wide", render: (one) => html`<strong>${one.name}</strong>${one.paused_at ? html` <${Badge} tone="warn">paused<//> <span class="faint"><${RelativeTime} at=${one.paused_at} /></span>` : null}` },
        { name: "Limits", tone: "wide", render: (one) => html`${one.limits_text || "none"}${one.is_overridden ? html`<div class="faint">set by hand; code says: ${one.declared_limits ?? "nothing"}</div>` : null}` },
        { name: "Running", tone: "number", render: (one) => html`${formatCount(one.running_count)}${one.concurrency ? ` of ${formatCount(one.concurrency)}` : ""}` },
        { name: "Waiting", tone: "number", render: (one) => formatCount(one.waiting_count) },
        { name: "Why it waits", tone: "wide", render: (one) => html`${one.waiting_count || one.paused_at ? one.blocked_reason ?? (one.waiting_count ? "it does not: workers take what waits" : "") : ""}${one.next_start_at ? html`<div class="faint">the next may begin <${RelativeTime} at=${one.next_start_at} /></div>` : null}` },
        { name: "Keys", tone: "wide", render: (one) => html`<${QueueKeyList} one=${one} />` },
        { name: "", hiddenName: "acts", render: (one) => html`<div class="row-acts">
          ${one.paused_at
            ? html`<${ScopedActionButton} caller=${caller} scope="operate" tone="main" action=${buildAction(one, "resume")} done="${one.name} goes on.">Resume<//>`
            : html`<${ScopedActionButton} caller=${caller} scope="operate" action=${buildAction(one, "pause")} done="${one.name} is paused: what runs is left alone, nothing else begins.">Pause<//>`}
          <${ScopedButton} caller=${caller} scope="operate" aria-label="limits of ${one.name}" onClick=${() => setDialog(one)}>Limits<//>
          ${one.is_overridden ? html`<${ScopedActionButton} caller=${caller} scope="operate" action=${buildAction(one, "reset")} done="${one.name} has the limits that code says.">Reset<//>` : null}
        </div>` },
      ]} />` : null}
    ${dialog ? html`<${LimitsDialog} one=${dialog} onClose=${() => setDialog(null)} refresh=${refresh} />` : null}`;
}

function QueueKeyList({ one }) {
  if (!one.keys.length) return null;
  return html`<ul class="of-keys" aria-label="runs by key">${one.keys.slice(0, 8).map((item) => html`<li key=${item.key}><strong>${item.key || "(no key)"}</strong> ${formatCount(item.running_count)} running, ${formatCount(item.waiting_count)} waiting</li>`)}</ul>
    ${one.keys.length > 8 ? html`<span class="faint">and ${one.keys.length - 8} more</span>` : null}`;
}

const FIELDS = [
  { name: "concurrency", label: "Runs at once", hint: "a whole number; nothing: any number" },
  { name: "rate", label: "Rate", hint: "as in 100/min or 50000 tokens/min; several, with commas, all count" },
  { name: "key_concurrency", label: "Runs at once of each key", hint: "a whole number; nothing: any number" },
  { name: "key_rate", label: "Rate of each key", hint: "as above" },
];
const isRate = (name) => name.endsWith("rate");
const formatLimit = (one, name) => (isRate(name) ? (one[name] ?? []).join(", ") : String(one[name] ?? ""));

// What was typed in place of what there is: only that changes.
const findChanges = (one, typed) => FIELDS.filter(({ name }) => typed[name].trim() !== formatLimit(one, name));

function LimitsDialog({ one, onClose, refresh }) {
  const close = useClose(onClose);
  const [queue, setQueue] = useState(one.name);
  const [typed, setTyped] = useState(() => Object.fromEntries(FIELDS.map((field) => [field.name, formatLimit(one, field.name)])));
  const check = () => {
    const changed = findChanges(one, typed);
    const errors = Object.fromEntries(changed.filter(({ name }) => !isRate(name) && typed[name].trim() && !isPositiveInteger(typed[name])).map(({ name }) => [name, "A whole number from 1 on."]));
    if (!queue.trim()) errors.queue = "Which queue?";
    else if (!one.name && !changed.length) errors.concurrency = "Give at least one limit.";
    return errors;
  };
  const { errors, problem, isBusy, onSubmit } = useSubmit(check, async () => {
    const parseLimit = (name) => (!typed[name].trim() ? null : isRate(name) ? splitList(typed[name]) : Number(typed[name]));
    const limits = Object.fromEntries(findChanges(one, typed).map(({ name }) => [name, parseLimit(name)]));
    if (Object.keys(limits).length) await patch(`/v1/queues/${encodePart(queue.trim())}`, limits);
    refresh();
    close();
  });
  return html`<${Dialog} title=${one.name ? `Limits of ${one.name}` : "Limit a queue"} onClose=${onClose}>
    <form onSubmit=${onSubmit} novalidate>
      <p class="faint">They hold for all workers at once, and stay until they are reset, whatever code says.</p>
      <${TextInput} label="Queue" value=${queue} onChange=${setQueue} error=${errors.queue} disabled=${Boolean(one.name)} />
      ${FIELDS.map(({ name, label, hint }) => html`<${TextInput} key=${name} label=${label} hint=${hint} error=${errors[name]} value=${typed[name]} onChange=${(text) => setTyped((before) => ({ ...before, [name]: text }))} />`)}
      <${ProblemNote} problem=${problem} />
      <div class="does"><button type="button" onClick=${onClose}>Leave it</button><button class="main" disabled=${isBusy}>Set</button></div>
    </form>
  <//>`;
}
