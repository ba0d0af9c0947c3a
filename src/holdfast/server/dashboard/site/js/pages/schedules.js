// What is started at set times.

import { html, useEffect, useState } from "../html.js";
import { get, part, post, put, remove } from "../api.js";
import { useGet, useNow } from "../data.js";
import { Entry, isWhole, listed, useEntries } from "../form-controls.js";
import { ago, clock } from "../format.js";
import { Ago, Badge, Confirm, Dialog, List, ProblemNote, State, toast, useClosing, Value } from "../components.js";
import { href } from "../router.js";
import { ScopedAct, ScopedButton, ScopeNote } from "../scopes.js";

const LATE = 60; // seconds: as long as a tick counts as being on time
const CATCH_UP = { skip: "skip: none of them", last: "last: the newest one, once", all: "all: each of them" };
const OVERLAP = { allow: "allow: start it beside the run before", skip: "skip: start nothing while the run before is under way" };

export function SchedulesPage({ who }) {
  const { data, problem, again } = useGet("/v1/schedules");
  const [dialog, setDialog] = useState(null);
  const close = () => setDialog(null);
  const act = (one, word) => () => post(`/v1/schedules/${part(one.name)}/${word}`, {}).then(again);
  return html`<header><h1>Schedules</h1>
      <div class="right"><${ScopedButton} who=${who} scope="operate" tone="main" onClick=${() => setDialog({ what: "edit", one: null })}>New schedule<//></div>
    </header>
    <${ProblemNote} problem=${problem} again=${again} />
    <${ScopeNote} who=${who} scope="operate" what="You can look, but change nothing." />
    ${data ? html`<${List} label="schedules" rows=${data.items} keyOf=${(one) => one.name} open=${(one) => setDialog({ what: "show", one })}
      empty=${html`<p>Nothing is started at set times.</p><p>Here, or in code: <code>@workflow(schedule=Schedule(cron="0 6 * * 1-5", zone="Europe/Berlin"))</code>. Each tick fires once, however many workers there are, and what was missed is made up for as the schedule says.</p>`}
      columns=${[
        { name: "Schedule", tone: "wide", of: (one) => html`<button class="plain link" onClick=${() => setDialog({ what: "show", one })}>${one.name}</button>
          <div class="faint">starts ${one.workflow}${one.is_declared_in_code ? ", declared in code" : ""}</div>${one.is_declared_in_code && !one.is_announced ? html`<${Badge} tone="warn">no worker has its code<//>` : null}` },
        { name: "When", tone: "wide", of: (one) => html`<code>${one.timing}</code>` },
        { name: "Next", tone: "wide", of: (one) => html`<${Next} one=${one} />` },
        { name: "Last run", tone: "wide", of: (one) => html`<${Last} one=${one} />` },
        { name: "Missed", tone: "wide", of: (one) => html`<${Missed} one=${one} />` },
        { name: "", unseen: "acts", of: (one) => html`<div class="row-acts">
          <${ScopedAct} who=${who} scope="submit" act=${async () => {
            const { run_id } = await post(`/v1/schedules/${part(one.name)}/trigger`, {});
            toast(html`Started <a href=${href("runs", run_id)}>${run_id}</a>.`, "good");
            again();
          }}>Trigger<//>
          ${one.paused_at
            ? html`<${ScopedAct} who=${who} scope="operate" tone="main" act=${act(one, "resume")} done="${one.name} fires again.">Resume<//>`
            : html`<${ScopedAct} who=${who} scope="operate" act=${act(one, "pause")} done="${one.name} is paused, over restarts and deploys.">Pause<//>`}
          <${ScopedButton} who=${who} scope="operate" disabled=${one.is_declared_in_code} title=${one.is_declared_in_code ? "It is declared in code: change it there." : undefined} aria-label="edit ${one.name}" onClick=${() => setDialog({ what: "edit", one })}>Edit<//>
          <${ScopedButton} who=${who} scope="operate" tone="danger" aria-label="delete ${one.name}" onClick=${() => setDialog({ what: "delete", one })}>Delete<//>
        </div>` },
      ]} />` : null}
    ${dialog?.what === "show" ? html`<${Shown} one=${dialog.one} onClose=${close} />` : null}
    ${dialog?.what === "edit" ? html`<${Editor} one=${dialog.one} onClose=${close} again=${again} />` : null}
    ${dialog?.what === "delete" ? html`<${Confirm} title="Delete ${dialog.one.name}?" yes="Delete it" onClose=${close}
      words=${`It fires no more. Its runs stay.${dialog.one.is_declared_in_code ? " It is declared in code, and is back when a worker with that code starts." : ""}`}
      act=${async () => { await remove(`/v1/schedules/${part(dialog.one.name)}`); toast(`${dialog.one.name} is deleted.`, "good"); again(); }} />` : null}`;
}

function Next({ one }) {
  const now = useNow();
  if (one.paused_at) return html`<${Badge} tone="warn">paused<//> <span class="faint"><${Ago} at=${one.paused_at} /></span>`;
  if (!one.next_at) return html`<span class="faint">never again</span>`;
  const late = (now - Date.parse(one.next_at)) / 1000;
  if (late > LATE) return html`<${Badge} tone="bad">late<//> <${Ago} at=${one.next_at} /><div class="faint">no worker that serves ${one.workflow} is there to fire it</div>`;
  return html`${late >= 0 ? "now" : ago(one.next_at, now)}<div class="faint">${clock(one.next_at)}</div>`;
}

function Last({ one }) {
  if (!one.last_run_id) return html`<span class="faint">none yet</span>`;
  return html`<a href=${href("runs", one.last_run_id)}>${one.last_run_id}</a> ${one.last_run_state ? html`<${State} state=${one.last_run_state} />` : html`<span class="faint">deleted</span>`}
    <div><a href=${href("runs", "", { tag: `schedule:${one.name}` })}>all its runs</a></div>`;
}

function Missed({ one }) {
  return html`${one.skipped_at ? html`<div>left out <${Ago} at=${one.skipped_at} />: the run before was under way</div>` : null}
    <div class="faint">${{ skip: "what is missed is left out", last: "what is missed is made up for once", all: "all that is missed is made up for" }[one.catch_up]}</div>`;
}

// The next firings of a timing, as the server tells; what is wrong with the timing is told instead.
function useTicks(timing) {
  const [told, setTold] = useState({ ticks: null, problem: null });
  useEffect(() => {
    if (!timing.trim()) return setTold({ ticks: null, problem: null });
    const mine = new AbortController();
    const timer = setTimeout(() => get("/v1/ticks", { timing, limit: 5 }, mine.signal).then(
      (ticks) => setTold({ ticks, problem: null }),
      (problem) => problem.name === "AbortError" || setTold({ ticks: null, problem }),
    ), 250);
    return () => { clearTimeout(timer); mine.abort(); };
  }, [timing]);
  return told;
}

function Ticks({ ticks }) {
  if (!ticks) return null;
  return html`<div class="ticks"><div>${ticks.description}. By your clock (${Intl.DateTimeFormat().resolvedOptions().timeZone}):</div><ol aria-label="next firings">${ticks.items.map((at) => html`<li key=${at}>${clock(at)} <span class="faint"><${Ago} at=${at} /></span></li>`)}</ol></div>`;
}

function Shown({ one, onClose }) {
  const { ticks, problem } = useTicks(one.timing);
  return html`<${Dialog} title=${one.name} onClose=${onClose}>
    <dl>
      <dt>starts</dt><dd>${one.workflow}${one.queue ? ` in queue ${one.queue}` : ""}${one.key ? `, key ${one.key}` : ""}${one.priority ? `, priority ${one.priority}` : ""}</dd>
      <dt>when</dt><dd><code>${one.timing}</code></dd>
      <dt>missed</dt><dd>${CATCH_UP[one.catch_up]}, ${one.max_catch_up} at once at most</dd>
      <dt>overlap</dt><dd>${OVERLAP[one.overlap]}</dd>
      <dt>made</dt><dd>${one.is_declared_in_code ? "in code" : "by hand"}, <${Ago} at=${one.created_at} /></dd>
      ${one.budget ? html`<dt>budget</dt><dd>${Object.entries(one.budget).filter(([, most]) => most !== null).map(([limit, most]) => `${most} ${limit}`).join(", ")} for each run</dd>` : null}
      ${one.tags.length ? html`<dt>tags</dt><dd>${one.tags.join(", ")}</dd>` : null}
    </dl>
    <h3>Inputs</h3><${Value} of=${one.inputs} label="inputs" />
    <h3>Next</h3><${ProblemNote} problem=${problem} /><${Ticks} ticks=${ticks} />
    <div class="does"><a class="button" href=${href("runs", "", { tag: `schedule:${one.name}` })} onClick=${onClose}>Its runs</a><button onClick=${onClose}>Close</button></div>
  <//>`;
}

// The inputs that were typed: { value } or { fault }.
function inputsIn(text) {
  try {
    const value = text.trim() ? JSON.parse(text) : {};
    return value === null || typeof value !== "object" || Array.isArray(value) ? { fault: "An object: a value for each parameter, by its name." } : { value };
  } catch (error) {
    return { fault: `That is no JSON: ${error.message}` };
  }
}

function faultsIn(form, unfit) {
  const faults = {};
  const { fault } = inputsIn(form.inputs);
  if (!form.name.trim()) faults.name = "A schedule needs a name: the ids of its runs begin with it.";
  if (!form.workflow.trim()) faults.workflow = "Which workflow or agent is started?";
  if (!form.timing.trim()) faults.timing = "When does it fire?";
  else if (unfit) faults.timing = unfit.message;
  if (!isWhole(form.max_catch_up)) faults.max_catch_up = "A whole number from 1 on.";
  if (fault) faults.inputs = fault;
  return faults;
}

function Editor({ one, onClose, again }) {
  const close = useClosing(onClose);
  const agents = useGet("/v1/agents", {}, { live: false });
  const [form, setForm] = useState(() => ({
    name: one?.name ?? "", workflow: one?.workflow ?? "", timing: one?.timing ?? "", inputs: one ? JSON.stringify(one.inputs ?? {}, null, 2) : "{}",
    catch_up: one?.catch_up ?? "last", overlap: one?.overlap ?? "allow", max_catch_up: String(one?.max_catch_up ?? 100), queue: one?.queue ?? "", tags: (one?.tags ?? []).join(", "),
  }));
  const { ticks, problem: unfit } = useTicks(form.timing);
  const { faults, problem, busy, onSubmit } = useEntries(() => faultsIn(form, unfit), async () => {
    await put(`/v1/schedules/${part(form.name.trim())}`, {
      workflow: form.workflow.trim(), cron: form.timing.trim(), kwargs: inputsIn(form.inputs).value, catch_up: form.catch_up, overlap: form.overlap, max_catch_up: Number(form.max_catch_up), tags: listed(form.tags),
      ...(form.queue.trim() ? { queue: form.queue.trim() } : {}), ...(one ? { replace: true, key: one.key, priority: one.priority, budget: one.budget, max_deliveries: one.max_deliveries } : {}),
    });
    toast(`${form.name.trim()} is set.`, "good");
    again();
    close();
  });
  const set = (name) => (value) => setForm((before) => ({ ...before, [name]: value }));
  const entry = (name, label, hint, more = {}) => html`<${Entry} label=${label} hint=${hint} fault=${faults[name]} value=${form[name]} set=${set(name)} ...${more} />`;
  const choice = (name, words, choices) => html`<label class="field">${words}<select value=${form[name]} onChange=${(event) => set(name)(event.target.value)}>${Object.entries(choices).map(([value, text]) => html`<option key=${value} value=${value} selected=${value === form[name]}>${text}</option>`)}</select></label>`;
  return html`<${Dialog} title=${one ? `Change ${one.name}` : "New schedule"} onClose=${onClose}>
    <form onSubmit=${onSubmit} novalidate>
      ${entry("name", "Name", "", { disabled: Boolean(one) })}
      ${entry("workflow", "Starts", "a workflow or an agent that a worker has announced", { list: "served" })}
      <datalist id="served">${(agents.data?.items ?? []).map((each) => html`<option key=${each.name} value=${each.name} />`)}</datalist>
      ${entry("timing", "When", "a cron expression, with a time zone behind “in” (UTC without), or as in: every 15 min", { placeholder: "0 6 * * 1-5 in Europe/Berlin", spellcheck: false })}
      ${unfit && !faults.timing ? html`<p class="fault" role="status">${unfit.message}</p>` : html`<${Ticks} ticks=${ticks} />`}
      ${entry("inputs", "Inputs", "JSON: a value for each parameter, by its name", { long: true, spellcheck: false })}
      ${choice("catch_up", "Of ticks that were missed, fire", CATCH_UP)}
      ${choice("overlap", "While the run before is under way", OVERLAP)}
      ${entry("max_catch_up", "Missed ticks at once, at most", "", { inputmode: "numeric" })}
      ${entry("queue", "Queue", "nothing: the workflow's own")}
      ${entry("tags", "Tags", "with commas between them")}
      <${ProblemNote} problem=${problem} />
      <div class="does"><button type="button" onClick=${onClose}>Leave it</button><button class="main" disabled=${busy}>${one ? "Change it" : "Make it"}</button></div>
    </form>
  <//>`;
}
