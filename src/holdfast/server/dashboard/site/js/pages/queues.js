// Queues with limits: what runs, what waits and why, and the limits set by hand.

import { html, useState } from "../html.js";
import { part, patch, post } from "../api.js";
import { useGet } from "../data.js";
import { Entry, isWhole, listed, useEntries } from "../form-controls.js";
import { count } from "../format.js";
import { Ago, Badge, Dialog, List, ProblemNote, useClosing } from "../components.js";
import { ScopedAct, ScopedButton, ScopeNote } from "../scopes.js";

export function QueuesPage({ who }) {
  const { data, problem, again } = useGet("/v1/queues");
  const [dialog, setDialog] = useState(null);
  const act = (one, word) => () => post(`/v1/queues/${part(one.name)}/${word}`, {}).then(again);
  return html`<header><h1>Queues</h1>
      <div class="right"><${ScopedButton} who=${who} scope="operate" onClick=${() => setDialog({ name: "" })}>Limit a queue<//></div>
    </header>
    <${ProblemNote} problem=${problem} again=${again} />
    <${ScopeNote} who=${who} scope="operate" what="You can look, but change nothing." />
    ${data ? html`<${List} label="queues" rows=${data.items} keyOf=${(one) => one.name}
      empty=${html`<p>No queue has limits.</p><p>Every run is in a queue; one with limits is made in code, <code>@workflow(queue=Queue("api", concurrency=10))</code>, or here, by hand. Its limits hold for all workers together.</p>`}
      columns=${[
        { name: "Queue", tone: "wide", of: (one) => html`<strong>${one.name}</strong>${one.paused_at ? html` <${Badge} tone="warn">paused<//> <span class="faint"><${Ago} at=${one.paused_at} /></span>` : null}` },
        { name: "Limits", tone: "wide", of: (one) => html`${one.limits_text || "none"}${one.is_overridden ? html`<div class="faint">set by hand; code says: ${one.declared_limits ?? "nothing"}</div>` : null}` },
        { name: "Running", tone: "number", of: (one) => html`${count(one.running_count)}${one.concurrency ? ` of ${count(one.concurrency)}` : ""}` },
        { name: "Waiting", tone: "number", of: (one) => count(one.waiting_count) },
        { name: "Why it waits", tone: "wide", of: (one) => html`${one.waiting_count || one.paused_at ? one.blocked_reason ?? (one.waiting_count ? "it does not: workers take what waits" : "") : ""}${one.next_start_at ? html`<div class="faint">the next may begin <${Ago} at=${one.next_start_at} /></div>` : null}` },
        { name: "Keys", tone: "wide", of: (one) => html`<${Keys} one=${one} />` },
        { name: "", unseen: "acts", of: (one) => html`<div class="row-acts">
          ${one.paused_at
            ? html`<${ScopedAct} who=${who} scope="operate" tone="main" act=${act(one, "resume")} done="${one.name} goes on.">Resume<//>`
            : html`<${ScopedAct} who=${who} scope="operate" act=${act(one, "pause")} done="${one.name} is paused: what runs is left alone, nothing else begins.">Pause<//>`}
          <${ScopedButton} who=${who} scope="operate" aria-label="limits of ${one.name}" onClick=${() => setDialog(one)}>Limits<//>
          ${one.is_overridden ? html`<${ScopedAct} who=${who} scope="operate" act=${act(one, "reset")} done="${one.name} has the limits that code says.">Reset<//>` : null}
        </div>` },
      ]} />` : null}
    ${dialog ? html`<${Limits} one=${dialog} onClose=${() => setDialog(null)} again=${again} />` : null}`;
}

function Keys({ one }) {
  if (!one.keys.length) return null;
  return html`<ul class="of-keys" aria-label="runs by key">${one.keys.slice(0, 8).map((each) => html`<li key=${each.key}><strong>${each.key || "(no key)"}</strong> ${count(each.running_count)} running, ${count(each.waiting_count)} waiting</li>`)}</ul>
    ${one.keys.length > 8 ? html`<span class="faint">and ${one.keys.length - 8} more</span>` : null}`;
}

const FIELDS = [
  { name: "concurrency", words: "Runs at once", hint: "a whole number; nothing: any number" },
  { name: "rate", words: "Rate", hint: "as in 100/min or 50000 tokens/min; several, with commas, all count" },
  { name: "key_concurrency", words: "Runs at once of each key", hint: "a whole number; nothing: any number" },
  { name: "key_rate", words: "Rate of each key", hint: "as above" },
];
const isRate = (name) => name.endsWith("rate");
const textOf = (one, name) => (isRate(name) ? (one[name] ?? []).join(", ") : String(one[name] ?? ""));

// What was typed in place of what there is: only that changes.
const changedIn = (one, typed) => FIELDS.filter(({ name }) => typed[name].trim() !== textOf(one, name));

function Limits({ one, onClose, again }) {
  const close = useClosing(onClose);
  const [queue, setQueue] = useState(one.name);
  const [typed, setTyped] = useState(() => Object.fromEntries(FIELDS.map((field) => [field.name, textOf(one, field.name)])));
  const check = () => {
    const changed = changedIn(one, typed);
    const faults = Object.fromEntries(changed.filter(({ name }) => !isRate(name) && typed[name].trim() && !isWhole(typed[name])).map(({ name }) => [name, "A whole number from 1 on."]));
    if (!queue.trim()) faults.queue = "Which queue?";
    else if (!one.name && !changed.length) faults.concurrency = "Give at least one limit.";
    return faults;
  };
  const { faults, problem, busy, onSubmit } = useEntries(check, async () => {
    const valueOf = (name) => (!typed[name].trim() ? null : isRate(name) ? listed(typed[name]) : Number(typed[name]));
    const limits = Object.fromEntries(changedIn(one, typed).map(({ name }) => [name, valueOf(name)]));
    if (Object.keys(limits).length) await patch(`/v1/queues/${part(queue.trim())}`, limits);
    again();
    close();
  });
  return html`<${Dialog} title=${one.name ? `Limits of ${one.name}` : "Limit a queue"} onClose=${onClose}>
    <form onSubmit=${onSubmit} novalidate>
      <p class="faint">They hold for all workers at once, and stay until they are reset, whatever code says.</p>
      <${Entry} label="Queue" value=${queue} set=${setQueue} fault=${faults.queue} disabled=${Boolean(one.name)} />
      ${FIELDS.map(({ name, words, hint }) => html`<${Entry} key=${name} label=${words} hint=${hint} fault=${faults[name]} value=${typed[name]} set=${(text) => setTyped((before) => ({ ...before, [name]: text }))} />`)}
      <${ProblemNote} problem=${problem} />
      <div class="does"><button type="button" onClick=${onClose}>Leave it</button><button class="main" disabled=${busy}>Set</button></div>
    </form>
  <//>`;
}
