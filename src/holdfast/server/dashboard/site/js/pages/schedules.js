// Schedules, which start runs at set times.

import { html, useEffect, useState } from "../html.js";
import { encodePart, get, post, put, remove } from "../api.js";
import { Badge, ConfirmDialog, Dialog, List, ProblemNote, RelativeTime, showToast, StateBadge, useClose, Value } from "../components.js";
import { useGet, useNow } from "../data.js";
import { isPositiveInteger, splitList, TextInput, useSubmit } from "../form-controls.js";
import { formatRelativeTime, formatTime } from "../format.js";
import { buildHref } from "../router.js";
import { ScopedActionButton, ScopedButton, ScopeNote } from "../scopes.js";

const LATE_AFTER_S = 60; // a tick counts as on time until then
const CATCH_UP_LABELS = { skip: "skip: none of them", last: "last: the newest one, once", all: "all: each of them" };
const OVERLAP_LABELS = { allow: "allow: start it beside the run before", skip: "skip: start nothing while the run before is under way" };

export function SchedulesPage({ caller }) {
  const { data, problem, refresh } = useGet("/v1/schedules");
  const [dialog, setDialog] = useState(null);
  const close = () => setDialog(null);
  const buildAction = (one, verb) => () => post(`/v1/schedules/${encodePart(one.name)}/${verb}`, {}).then(refresh);
  return html`<header><h1>Schedules</h1>
      <div class="right"><${ScopedButton} caller=${caller} scope="operate" tone="main" onClick=${() => setDialog({ type: "edit", one: null })}>New schedule<//></div>
    </header>
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    <${ScopeNote} caller=${caller} scope="operate" hint="You can look, but change nothing." />
    ${data ? html`<${List} label="schedules" rows=${data.items} getKey=${(one) => one.name} onOpen=${(one) => setDialog({ type: "show", one })}
      empty=${html`<p>Nothing is started at set times.</p><p>Here, or in code: <code>@workflow(schedule=Schedule(cron="0 6 * * 1-5", zone="Europe/Berlin"))</code>. Each tick fires once, however many workers there are, and what was missed is made up for as the schedule says.</p>`}
      columns=${[
        { name: "Schedule", tone: "wide", render: (one) => html`<button class="plain link" onClick=${() => setDialog({ type: "show", one })}>${one.name}</button>
          <div class="faint">starts ${one.workflow}${one.is_declared_in_code ? ", declared in code" : ""}</div>${one.is_declared_in_code && !one.is_announced ? html`<${Badge} tone="warn">no worker has its code<//>` : null}` },
        { name: "When", tone: "wide", render: (one) => html`<code>${one.timing}</code>` },
        { name: "Next", tone: "wide", render: (one) => html`<${NextTick} one=${one} />` },
        { name: "Last run", tone: "wide", render: (one) => html`<${LastRun} one=${one} />` },
        { name: "Missed", tone: "wide", render: (one) => html`<${MissedTicks} one=${one} />` },
        { name: "", hiddenName: "acts", render: (one) => html`<div class="row-acts">
          <${ScopedActionButton} caller=${caller} scope="submit" action=${async () => {
            const { run_id } = await post(`/v1/schedules/${encodePart(one.name)}/trigger`, {});
            showToast(html`Started <a href=${buildHref("runs", run_id)}>${run_id}</a>.`, "good");
            refresh();
          }}>Trigger<//>
          ${one.paused_at
            ? html`<${ScopedActionButton} caller=${caller} scope="operate" tone="main" action=${buildAction(one, "resume")} done="${one.name} fires again.">Resume<//>`
            : html`<${ScopedActionButton} caller=${caller} scope="operate" action=${buildAction(one, "pause")} done="${one.name} is paused, over restarts and deploys.">Pause<//>`}
          <${ScopedButton} caller=${caller} scope="operate" disabled=${one.is_declared_in_code} title=${one.is_declared_in_code ? "It is declared in code: change it there." : undefined} aria-label="edit ${one.name}" onClick=${() => setDialog({ type: "edit", one })}>Edit<//>
          <${ScopedButton} caller=${caller} scope="operate" tone="danger" aria-label="delete ${one.name}" onClick=${() => setDialog({ type: "delete", one })}>Delete<//>
        </div>` },
      ]} />` : null}
    ${dialog?.type === "show" ? html`<${ScheduleDialog} one=${dialog.one} onClose=${close} />` : null}
    ${dialog?.type === "edit" ? html`<${ScheduleForm} one=${dialog.one} onClose=${close} refresh=${refresh} />` : null}
    ${dialog?.type === "delete" ? html`<${ConfirmDialog} title="Delete ${dialog.one.name}?" confirmLabel="Delete it" onClose=${close}
      text=${`It fires no more. Its runs stay.${dialog.one.is_declared_in_code ? " It is declared in code, and is back when a worker with that code starts." : ""}`}
      action=${async () => { await remove(`/v1/schedules/${encodePart(dialog.one.name)}`); showToast(`${dialog.one.name} is deleted.`, "good"); refresh(); }} />` : null}`;
}

function NextTick({ one }) {
  const now = useNow();
  if (one.paused_at) return html`<${Badge} tone="warn">paused<//> <span class="faint"><${RelativeTime} at=${one.paused_at} /></span>`;
  if (!one.next_at) return html`<span class="faint">never again</span>`;
  const lateS = (now - Date.parse(one.next_at)) / 1000;
  if (lateS > LATE_AFTER_S) return html`<${Badge} tone="bad">late<//> <${RelativeTime} at=${one.next_at} /><div class="faint">no worker that serves ${one.workflow} is there to fire it</div>`;
  return html`${lateS >= 0 ? "now" : formatRelativeTime(one.next_at, now)}<div class="faint">${formatTime(one.next_at)}</div>`;
}

function LastRun({ one }) {
  if (!one.last_run_id) return html`<span class="faint">none yet</span>`;
  return html`<a href=${buildHref("runs", one.last_run_id)}>${one.last_run_id}</a> ${one.last_run_state ? html`<${StateBadge} state=${one.last_run_state} />` : html`<span class="faint">deleted</span>`}
    <div><a href=${buildHref("runs", "", { tag: `schedule:${one.name}` })}>all its runs</a></div>`;
}

function MissedTicks({ one }) {
  return html`${one.skipped_at ? html`<div>left out <${RelativeTime} at=${one.skipped_at} />: the run before was under way</div>` : null}
    <div class="faint">${{ skip: "what is missed is left out", last: "what is missed is made up for once", all: "all that is missed is made up for" }[one.catch_up]}</div>`;
}

// The next ticks of a timing, or the problem with the timing.
function useTicks(timing) {
  const [state, setState] = useState({ ticks: null, problem: null });
  useEffect(() => {
    if (!timing.trim()) return setState({ ticks: null, problem: null });
    const controller = new AbortController();
    const timer = setTimeout(() => get("/v1/ticks", { timing, limit: 5 }, controller.signal).then(
      (ticks) => setState({ ticks, problem: null }),
      (problem) => problem.name === "AbortError" || setState({ ticks: null, problem }),
    ), 250);
    return () => { clearTimeout(timer); controller.abort(); };
  }, [timing]);
  return state;
}

function TickList({ ticks }) {
  if (!ticks) return null;
  return html`<div class="ticks"><div>${ticks.description}. By your clock (${Intl.DateTimeFormat().resolvedOptions().timeZone}):</div><ol aria-label="next firings">${ticks.items.map((at) => html`<li key=${at}>${formatTime(at)} <span class="faint"><${RelativeTime} at=${at} /></span></li>`)}</ol></div>`;
}

function ScheduleDialog({ one, onClose }) {
  const { ticks, problem } = useTicks(one.timing);
  return html`<${Dialog} title=${one.name} onClose=${onClose}>
    <dl>
      <dt>starts</dt><dd>${one.workflow}${one.queue ? ` in queue ${one.queue}` : ""}${one.key ? `, key ${one.key}` : ""}${one.priority ? `, priority ${one.priority}` : ""}</dd>
      <dt>when</dt><dd><code>${one.timing}</code></dd>
      <dt>missed</dt><dd>${CATCH_UP_LABELS[one.catch_up]}, ${one.max_catch_up} at once at most</dd>
      <dt>overlap</dt><dd>${OVERLAP_LABELS[one.overlap]}</dd>
      <dt>made</dt><dd>${one.is_declared_in_code ? "in code" : "by hand"}, <${RelativeTime} at=${one.created_at} /></dd>
      ${one.budget ? html`<dt>budget</dt><dd>${Object.entries(one.budget).filter(([, max]) => max !== null).map(([limit, max]) => `${max} ${limit}`).join(", ")} for each run</dd>` : null}
      ${one.tags.length ? html`<dt>tags</dt><dd>${one.tags.join(", ")}</dd>` : null}
    </dl>
    <h3>Inputs</h3><${Value} value=${one.inputs} label="inputs" />
    <h3>Next</h3><${ProblemNote} problem=${problem} /><${TickList} ticks=${ticks} />
    <div class="does"><a class="button" href=${buildHref("runs", "", { tag: `schedule:${one.name}` })} onClick=${onClose}>Its runs</a><button onClick=${onClose}>Close</button></div>
  <//>`;
}

// The typed inputs: { value } or { error }.
function parseInputs(text) {
  try {
    const value = text.trim() ? JSON.parse(text) : {};
    return value === null || typeof value !== "object" || Array.isArray(value) ? { error: "An object: a value for each parameter, by its name." } : { value };
  } catch (error) {
    return { error: `That is no JSON: ${error.message}` };
  }
}

function findErrors(form, timingProblem) {
  const errors = {};
  const { error } = parseInputs(form.inputs);
  if (!form.name.trim()) errors.name = "A schedule needs a name: the ids of its runs begin with it.";
  if (!form.workflow.trim()) errors.workflow = "Which workflow or agent is started?";
  if (!form.timing.trim()) errors.timing = "When does it fire?";
  else if (timingProblem) errors.timing = timingProblem.message;
  if (!isPositiveInteger(form.max_catch_up)) errors.max_catch_up = "A whole number from 1 on.";
  if (error) errors.inputs = error;
  return errors;
}

function ScheduleForm({ one, onClose, refresh }) {
  const close = useClose(onClose);
  const agents = useGet("/v1/agents", {}, { live: false });
  const [form, setForm] = useState(() => ({
    name: one?.name ?? "", workflow: one?.workflow ?? "", timing: one?.timing ?? "", inputs: one ? JSON.stringify(one.inputs ?? {}, null, 2) : "{}",
    catch_up: one?.catch_up ?? "last", overlap: one?.overlap ?? "allow", max_catch_up: String(one?.max_catch_up ?? 100), queue: one?.queue ?? "", tags: (one?.tags ?? []).join(", "),
  }));
  const { ticks, problem: timingProblem } = useTicks(form.timing);
  const { errors, problem, isBusy, onSubmit } = useSubmit(() => findErrors(form, timingProblem), async () => {
    await put(`/v1/schedules/${encodePart(form.name.trim())}`, {
      workflow: form.workflow.trim(), cron: form.timing.trim(), kwargs: parseInputs(form.inputs).value, catch_up: form.catch_up, overlap: form.overlap, max_catch_up: Number(form.max_catch_up), tags: splitList(form.tags),
      ...(form.queue.trim() ? { queue: form.queue.trim() } : {}), ...(one ? { replace: true, key: one.key, priority: one.priority, budget: one.budget, max_deliveries: one.max_deliveries } : {}),
    });
    showToast(`${form.name.trim()} is set.`, "good");
    refresh();
    close();
  });
  const set = (name) => (value) => setForm((before) => ({ ...before, [name]: value }));
  const renderInput = (name, label, hint, more = {}) => html`<${TextInput} label=${label} hint=${hint} error=${errors[name]} value=${form[name]} onChange=${set(name)} ...${more} />`;
  const renderSelect = (name, label, choices) => html`<label class="field">${label}<select value=${form[name]} onChange=${(event) => set(name)(event.target.value)}>${Object.entries(choices).map(([value, text]) => html`<option key=${value} value=${value} selected=${value === form[name]}>${text}</option>`)}</select></label>`;
  return html`<${Dialog} title=${one ? `Change ${one.name}` : "New schedule"} onClose=${onClose}>
    <form onSubmit=${onSubmit} novalidate>
      ${renderInput("name", "Name", "", { disabled: Boolean(one) })}
      ${renderInput("workflow", "Starts", "a workflow or an agent that a worker has announced", { list: "served" })}
      <datalist id="served">${(agents.data?.items ?? []).map((agent) => html`<option key=${agent.name} value=${agent.name} />`)}</datalist>
      ${renderInput("timing", "When", "a cron expression, with a time zone behind “in” (UTC without), or as in: every 15 min", { placeholder: "0 6 * * 1-5 in Europe/Berlin", spellcheck: false })}
      ${timingProblem && !errors.timing ? html`<p class="fault" role="status">${timingProblem.message}</p>` : html`<${TickList} ticks=${ticks} />`}
      ${renderInput("inputs", "Inputs", "JSON: a value for each parameter, by its name", { isLong: true, spellcheck: false })}
      ${renderSelect("catch_up", "Of ticks that were missed, fire", CATCH_UP_LABELS)}
      ${renderSelect("overlap", "While the run before is under way", OVERLAP_LABELS)}
      ${renderInput("max_catch_up", "Missed ticks at once, at most", "", { inputmode: "numeric" })}
      ${renderInput("queue", "Queue", "nothing: the workflow's own")}
      ${renderInput("tags", "Tags", "with commas between them")}
      <${ProblemNote} problem=${problem} />
      <div class="does"><button type="button" onClick=${onClose}>Leave it</button><button class="main" disabled=${isBusy}>${one ? "Change it" : "Make it"}</button></div>
    </form>
  <//>`;
}
