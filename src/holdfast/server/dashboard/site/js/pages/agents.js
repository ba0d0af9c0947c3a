// Agents, workflows, and addresses: their health, costs, and policies, and the buttons that disable and enable them.

import { html, useState } from "../html.js";
import { encodePart, post, put, remove } from "../api.js";
import { ActionButton, Badge, ConfirmDialog, Dialog, EmptyState, List, ProblemNote, RelativeTime, showToast, StateBadge, useClose } from "../components.js";
import { useGet } from "../data.js";
import { TextInput, useSubmit } from "../form-controls.js";
import { formatCount, formatMoney, pluralize } from "../format.js";
import { buildHref, navigate, updateQuery } from "../router.js";
import { ScopedActionButton, ScopedButton, ScopeNote } from "../scopes.js";
import { getRangeStart, groupUsage, NANO_PER_DOLLAR, toIsoDay } from "../spending.js";

const HEALTH = {
  serving: { tone: "good", describe: (one) => `${pluralize(one.worker_count, "live worker")}` },
  silent: { tone: "bad", describe: () => "its workers have fallen silent: they are dead, cut off or stand still" },
  unserved: { tone: "warn", describe: () => "no worker serves it: its runs wait until one does" },
  disabled: { tone: "bad", describe: () => "none of its runs start or continue" },
};
const SLOW_INTERVAL_MS = 3000;
const UNFINISHED = ["pending", "running", "waiting"];
const countUnfinished = (runs) => UNFINISHED.reduce((sum, state) => sum + (runs[state] ?? 0), 0);

export function AgentsPage({ query, caller }) {
  const includesWorkflows = query.all === "1";
  const today = toIsoDay(Date.now());
  const agents = useGet("/v1/agents");
  const usage = useGet("/v1/usage", { since: getRangeStart(30), until: today }, { minIntervalMs: SLOW_INTERVAL_MS });
  const policies = useGet("/v1/policies", {}, { minIntervalMs: SLOW_INTERVAL_MS });
  const addresses = useGet("/v1/addresses", {}, { minIntervalMs: SLOW_INTERVAL_MS });
  const workers = useGet("/v1/workers", {}, { minIntervalMs: SLOW_INTERVAL_MS });
  const [dialog, setDialog] = useState(null);
  const close = () => setDialog(null);
  const queries = [agents, usage, policies, addresses, workers];
  const refresh = () => queries.forEach((one) => one.refresh());

  const names = new Set((addresses.data?.items ?? []).map((one) => one.name));
  const knownAgents = agents.data?.items ?? [];
  const shownAgents = knownAgents.filter((one) => !names.has(one.name) && (one.is_agent || includesWorkflows));
  const workflowCount = knownAgents.filter((one) => !names.has(one.name) && !one.is_agent).length;
  const items = usage.data?.daily_usage ?? [];
  const sumSince = (from) => new Map(groupUsage(items.filter((one) => one.day >= from), "workflow").map((one) => [one.name, one]));
  const sums = { today: sumSince(today), month: sumSince(getRangeStart(30)) };
  const policyByName = new Map((policies.data?.items ?? []).map((one) => [one.name, one]));
  const columns = [
    { name: "Name", tone: "wide", render: (one) => html`<strong>${one.name}</strong>${one.is_agent ? null : html` <${Badge}>workflow<//>`}${one.versions.length ? html`<div class="faint">version ${one.versions.join(", ")}</div>` : null}` },
    { name: "Health", tone: "wide", render: (one) => html`<${HealthStatus} one=${one} />` },
    { name: "Runs", tone: "wide", render: (one) => html`<${RunCounts} one=${one} />` },
    { name: "Today", tone: "number", render: (one) => html`<${UsageSum} sum=${sums.today.get(one.name)} known=${usage.data} />` },
    { name: "30 days", tone: "number", render: (one) => html`<a href=${buildHref("costs", "", { agent: one.name })} aria-label="costs of ${one.name}"><${UsageSum} sum=${sums.month.get(one.name)} known=${usage.data} /></a>` },
    { name: "Policy", tone: "wide", render: (one) => html`<${PolicySummary} info=${policyByName.get(one.name)} known=${policies.data} />` },
    { name: "", hiddenName: "acts", render: (one) => html`<div class="row-acts">
      <a class="button" href=${buildHref("runs", "", { workflow: one.name })}>Runs</a>
      <${ScopedButton} caller=${caller} scope="admin" disabled=${!policies.data} aria-label="policy of ${one.name}" onClick=${() => setDialog({ type: "policy", one, info: policyByName.get(one.name) })}>Policy<//>
      ${one.state === "disabled"
        ? html`<${ScopedActionButton} caller=${caller} scope="operate" tone="main" action=${() => post(`/v1/agents/${encodePart(one.name)}/enable`, {}).then(refresh)} done="${one.name} is enabled.">Enable<//>`
        : html`<${ScopedButton} caller=${caller} scope="operate" tone="danger" aria-label="disable ${one.name}" onClick=${() => setDialog({ type: "disable", one })}>Disable<//>`}
    </div>` },
  ];
  const problem = queries.find((one) => one.problem)?.problem;
  return html`<header>
      <h1>Agents</h1>
      <div class="right"><label class="line"><input type="checkbox" checked=${includesWorkflows} onChange=${(event) => updateQuery({ all: event.target.checked ? "1" : "" })} />workflows, too</label></div>
    </header>
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    <${ScopeNote} caller=${caller} scope="operate" hint="You can look, but not disable anything." />
    ${agents.data ? html`<${List} label="agents" rows=${shownAgents} getKey=${(one) => one.name} onOpen=${(one) => navigate("runs", "", { workflow: one.name })} columns=${columns}
      empty=${html`<p>${includesWorkflows ? "No worker has announced an agent or a workflow yet." : "No worker has announced an agent yet."}${!includesWorkflows && workflowCount ? html` There ${workflowCount === 1 ? "is" : "are"} <a href=${buildHref("agents", "", { all: "1" })}>${pluralize(workflowCount, "workflow")}</a>.` : null}</p>
        <p>A worker announces what it serves when it starts: <code>holdfast worker app:my_agent</code>. An agent of another framework is announced by its first heartbeat: <code>POST /v1/agents/NAME/heartbeat</code>.</p>`} />` : null}
    <${AddressList} addresses=${addresses} workers=${workers.data} agents=${knownAgents} caller=${caller} onDisable=${(one) => setDialog({ type: "disable", one })} refresh=${refresh} />
    ${dialog?.type === "disable" ? html`<${DisableDialog} one=${dialog.one} onClose=${close} refresh=${refresh} />` : null}
    ${dialog?.type === "policy" ? html`<${PolicyDialog} one=${dialog.one} info=${dialog.info} onClose=${close} refresh=${refresh} />` : null}`;
}

function HealthStatus({ one }) {
  const { tone, describe } = HEALTH[one.state];
  return html`<${Badge} tone=${tone}>${one.state}<//> <span>${describe(one)}</span>
    ${one.state === "disabled" && one.disabled_at ? html`<div class="faint">since <${RelativeTime} at=${one.disabled_at} />${one.disabled_by ? ` by ${one.disabled_by}` : ""}${one.disabled_reason ? `: ${one.disabled_reason}` : ""}</div>` : null}
    ${one.heartbeat_at ? html`<div class="faint">last heartbeat <${RelativeTime} at=${one.heartbeat_at} /></div>` : null}`;
}

function RunCounts({ one }) {
  const states = Object.entries(one.run_counts).filter(([, number]) => number);
  if (!states.length) return html`<span class="faint">none yet</span>`;
  return html`<div class="states">${states.map(([state, number]) => html`<a key=${state} href=${buildHref("runs", "", { workflow: one.name, state })}>${formatCount(number)}${one.capped_states?.includes(state) ? "+" : ""} <${StateBadge} state=${state} /></a>`)}</div>`;
}

function UsageSum({ sum, known }) {
  if (!known) return null;
  if (!sum) return html`<span class="faint">–</span>`;
  return html`<span title="${pluralize(sum.calls, "call")}, ${formatCount(sum.input + sum.output)} tokens">${sum.calls > sum.unpriced ? formatMoney(sum.nano / NANO_PER_DOLLAR) : "price not known"}</span>`;
}

const BREACH_LABELS = { notify: "only told", refuse: "no more runs begin that day", pause: "disabled until the day is over", disable: "disabled until someone enables it" };

function PolicySummary({ info, known }) {
  if (!known) return null;
  if (!info) return html`<span class="faint">no limits</span>`;
  const { policy } = info;
  return html`<div>
    ${policy.runs_per_day !== null ? html`<div>${formatCount(info.run_count)} of ${pluralize(policy.runs_per_day, "run")} today</div>` : null}
    ${policy.usd_per_day !== null ? html`<div>${formatMoney(info.usd)} of ${formatMoney(policy.usd_per_day)} today</div>` : null}
    <div class="faint">then: ${BREACH_LABELS[policy.on_breach]}</div>
    ${info.breach ? html`<${Badge} tone="bad">reached<//> <span class="faint"><${RelativeTime} at=${info.breach.at} /></span>` : null}
  </div>`;
}

function DisableDialog({ one, onClose, refresh }) {
  const unfinishedCount = countUnfinished(one.run_counts);
  return html`<${ConfirmDialog} title="Disable ${one.name}?" confirmLabel="Disable it everywhere" onClose=${onClose}
    text=${html`${unfinishedCount ? html`<strong>${pluralize(unfinishedCount, "unfinished run")}</strong> ${unfinishedCount === 1 ? "is" : "are"} concerned: ${unfinishedCount === 1 ? "it stops" : "they stop"} at the next recorded point, on every worker.` : "It has no unfinished runs."} None of its runs start until you enable it again. Nothing is lost: what is recorded stays, and runs continue from there.`}
    action=${async () => {
      await post(`/v1/agents/${encodePart(one.name)}/disable`, {});
      showToast(`${one.name} is disabled.`, "good");
      refresh();
    }} />`;
}

function PolicyDialog({ one, info, onClose, refresh }) {
  const close = useClose(onClose);
  const policy = info?.policy ?? { runs_per_day: null, usd_per_day: null, on_breach: "refuse" };
  const [runs, setRuns] = useState(String(policy.runs_per_day ?? ""));
  const [usd, setUsd] = useState(String(policy.usd_per_day ?? ""));
  const [onBreach, setOnBreach] = useState(policy.on_breach);
  const path = `/v1/agents/${encodePart(one.name)}/policy`;
  const check = () => {
    const errors = {};
    if (!/^\d*$/.test(runs.trim())) errors.runs_per_day = "A whole number, or nothing for no limit.";
    if (usd.trim() && !(Number(usd) >= 0)) errors.usd_per_day = "A number of dollars, or nothing for no limit.";
    if (!runs.trim() && !usd.trim()) errors.runs_per_day = "A policy limits something: give at least one of the two.";
    return errors;
  };
  const { errors, problem, isBusy, onSubmit } = useSubmit(check, async () => {
    const parseLimit = (text) => (text.trim() ? Number(text) : null);
    await put(path, { runs_per_day: parseLimit(runs), usd_per_day: parseLimit(usd), on_breach: onBreach });
    refresh();
    close();
  });
  return html`<${Dialog} title="Policy of ${one.name}" onClose=${onClose}>
    <form onSubmit=${onSubmit} novalidate>
      <p class="faint">Days are those of UTC. Servers look about once a second: what is in flight when a limit is reached is paid for as well. For a limit that holds to the cent, give the runs budgets.</p>
      <${TextInput} label="Runs a day" hint="nothing: no limit" inputmode="numeric" value=${runs} onChange=${setRuns} error=${errors.runs_per_day} />
      <${TextInput} label="Dollars a day" hint="nothing: no limit" inputmode="decimal" value=${usd} onChange=${setUsd} error=${errors.usd_per_day} />
      <label class="field">When a limit is reached
        <select value=${onBreach} onChange=${(event) => setOnBreach(event.target.value)}>${Object.entries(BREACH_LABELS).map(([value, label]) => html`<option key=${value} value=${value} selected=${value === onBreach}>${value}: ${label}</option>`)}</select>
      </label>
      <${ProblemNote} problem=${problem} />
      <div class="does">
        ${info ? html`<${ActionButton} tone="danger" disabled=${isBusy} action=${async () => { await remove(path); refresh(); close(); }} done="It has no policy any more.">Remove it<//>` : null}
        <button type="button" onClick=${onClose}>Leave it</button>
        <button class="main" disabled=${isBusy}>Save</button>
      </div>
    </form>
  <//>`;
}

function AddressList({ addresses, workers, agents, caller, onDisable, refresh }) {
  const rows = addresses.data?.items ?? [];
  if (!addresses.data) return null;
  const agentByName = new Map(agents.map((one) => [one.name, one]));
  const findListeners = (name) => (workers?.items ?? []).filter((one) => one.is_listener && one.is_alive && one.workflows.includes(name));
  return html`<section class="below-list"><h2>Addresses</h2>
    <p class="faint">Work is sent to them over HTTP, and taken by programs that listen: in any language, or by a webhook.</p>
    ${rows.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="addresses"><table class="list">
      <thead><tr>${["Address", "Listeners", "Runs", "Settings"].map((one) => html`<th scope="col">${one}</th>`)}<th scope="col"><span class="out-of-sight">acts</span></th></tr></thead>
      <tbody>${rows.map((one) => {
        const listeners = findListeners(one.name);
        const agent = agentByName.get(one.name);
        return html`<tr key=${one.name}>
          <td data-name="Address" class="wide"><div class="cell"><strong>${one.name}</strong>${agent?.state === "disabled" ? html` <${Badge} tone="bad">disabled<//>` : null}</div></td>
          <td data-name="Listeners" class="wide"><div class="cell">${listeners.map((listener) => html`<div key=${listener.id}>${listener.name || `listener ${listener.id}`} <span class="faint">at ${listener.host}, heard of <${RelativeTime} at=${listener.heartbeat_at} /></span></div>`)}
            ${one.webhook ? html`<div>webhook <code>${one.webhook}</code>${one.webhook_disabled_reason ? html` <${Badge} tone="bad">stopped<//> ${one.webhook_disabled_reason}` : null}</div>` : null}
            ${workers && !listeners.length && !one.webhook ? html`<span class="faint">nobody listens: what is sent waits</span>` : null}</div></td>
          <td data-name="Runs" class="wide">${agent ? html`<${RunCounts} one=${agent} />` : null}</td>
          <td data-name="Settings" class="wide faint">${pluralize(one.max_deliveries, "delivery", "deliveries")} at most, silent after ${one.lease} s${one.deadline ? `, ${one.deadline} s in all` : ""}</td>
          <td data-name="">${agent ? html`<div class="row-acts"><a class="button" href=${buildHref("runs", "", { workflow: one.name })}>Runs</a>${agent.state === "disabled"
            ? html`<${ScopedActionButton} caller=${caller} scope="operate" tone="main" action=${() => post(`/v1/agents/${encodePart(one.name)}/enable`, {}).then(refresh)} done="${one.name} is enabled.">Enable<//>`
            : html`<${ScopedButton} caller=${caller} scope="operate" tone="danger" aria-label="disable ${one.name}" onClick=${() => onDisable(agent)}>Disable<//>`}</div>` : null}</td>
        </tr>`;
      })}</tbody>
    </table></div>` : html`<${EmptyState}>Nobody has sent to an address yet. <code>holdfast send NAME '{"…": 1}'</code> sends work to one, and whoever calls <code>POST /v1/addresses/NAME/claim</code> takes it.<//>`}
  </section>`;
}
