// Agents, workflows and addresses: whether somebody serves them, what they cost, what they may, and the buttons that disable and enable them.

import { html, useState } from "../html.js";
import { part, post, put, remove } from "../api.js";
import { useGet } from "../data.js";
import { Entry, useEntries } from "../form-controls.js";
import { count, money, plural } from "../format.js";
import { Act, Ago, Badge, Confirm, Dialog, Empty, List, ProblemNote, State, toast, useClosing } from "../components.js";
import { go, href, refine } from "../router.js";
import { ScopedAct, ScopedButton, ScopeNote } from "../scopes.js";
import { daysBack, dayOf, NANO, summed } from "../spending.js";

const HEALTH = {
  serving: { tone: "good", words: (one) => `${plural(one.worker_count, "live worker")}` },
  silent: { tone: "bad", words: () => "its workers have fallen silent: they are dead, cut off or stand still" },
  unserved: { tone: "warn", words: () => "no worker serves it: its runs wait until one does" },
  disabled: { tone: "bad", words: () => "none of its runs start or continue" },
};
const SLOWLY = 3000;
const UNFINISHED = ["pending", "running", "waiting"];
const unfinished = (runs) => UNFINISHED.reduce((sum, state) => sum + (runs[state] ?? 0), 0);

export function AgentsPage({ query, who }) {
  const all = query.all === "1";
  const today = dayOf(Date.now());
  const agents = useGet("/v1/agents");
  const usage = useGet("/v1/usage", { since: daysBack(30), until: today }, { pace: SLOWLY });
  const policies = useGet("/v1/policies", {}, { pace: SLOWLY });
  const addresses = useGet("/v1/addresses", {}, { pace: SLOWLY });
  const workers = useGet("/v1/workers", {}, { pace: SLOWLY });
  const [dialog, setDialog] = useState(null);
  const close = () => setDialog(null);
  const asked = [agents, usage, policies, addresses, workers];
  const again = () => asked.forEach((one) => one.again());

  const names = new Set((addresses.data?.items ?? []).map((one) => one.name));
  const known = agents.data?.items ?? [];
  const listed = known.filter((one) => !names.has(one.name) && (one.is_agent || all));
  const hidden = known.filter((one) => !names.has(one.name) && !one.is_agent).length;
  const items = usage.data?.daily_usage ?? [];
  const spent = (from) => new Map(summed(items.filter((one) => one.day >= from), "workflow").map((one) => [one.name, one]));
  const sums = { today: spent(today), month: spent(daysBack(30)) };
  const policyOf = new Map((policies.data?.items ?? []).map((one) => [one.name, one]));
  const columns = [
    { name: "Name", tone: "wide", of: (one) => html`<strong>${one.name}</strong>${one.is_agent ? null : html` <${Badge}>workflow<//>`}${one.versions.length ? html`<div class="faint">version ${one.versions.join(", ")}</div>` : null}` },
    { name: "Health", tone: "wide", of: (one) => html`<${HealthOf} one=${one} />` },
    { name: "Runs", tone: "wide", of: (one) => html`<${Runs} one=${one} />` },
    { name: "Today", tone: "number", of: (one) => html`<${Spent} sum=${sums.today.get(one.name)} known=${usage.data} />` },
    { name: "30 days", tone: "number", of: (one) => html`<a href=${href("costs", "", { agent: one.name })} aria-label="costs of ${one.name}"><${Spent} sum=${sums.month.get(one.name)} known=${usage.data} /></a>` },
    { name: "Policy", tone: "wide", of: (one) => html`<${PolicyOf} info=${policyOf.get(one.name)} known=${policies.data} />` },
    { name: "", unseen: "acts", of: (one) => html`<div class="row-acts">
      <a class="button" href=${href("runs", "", { workflow: one.name })}>Runs</a>
      <${ScopedButton} who=${who} scope="admin" disabled=${!policies.data} aria-label="policy of ${one.name}" onClick=${() => setDialog({ what: "policy", one, info: policyOf.get(one.name) })}>Policy<//>
      ${one.state === "disabled"
        ? html`<${ScopedAct} who=${who} scope="operate" tone="main" act=${() => post(`/v1/agents/${part(one.name)}/enable`, {}).then(again)} done="${one.name} is enabled.">Enable<//>`
        : html`<${ScopedButton} who=${who} scope="operate" tone="danger" aria-label="disable ${one.name}" onClick=${() => setDialog({ what: "disable", one })}>Disable<//>`}
    </div>` },
  ];
  const problem = asked.find((one) => one.problem)?.problem;
  return html`<header>
      <h1>Agents</h1>
      <div class="right"><label class="line"><input type="checkbox" checked=${all} onChange=${(event) => refine({ all: event.target.checked ? "1" : "" })} />workflows, too</label></div>
    </header>
    <${ProblemNote} problem=${problem} again=${again} />
    <${ScopeNote} who=${who} scope="operate" what="You can look, but not disable anything." />
    ${agents.data ? html`<${List} label="agents" rows=${listed} keyOf=${(one) => one.name} open=${(one) => go("runs", "", { workflow: one.name })} columns=${columns}
      empty=${html`<p>${all ? "No worker has announced an agent or a workflow yet." : "No worker has announced an agent yet."}${!all && hidden ? html` There ${hidden === 1 ? "is" : "are"} <a href=${href("agents", "", { all: "1" })}>${plural(hidden, "workflow")}</a>.` : null}</p>
        <p>A worker announces what it serves when it starts: <code>holdfast worker app:my_agent</code>. An agent of another framework is announced by its first heartbeat: <code>POST /v1/agents/NAME/heartbeat</code>.</p>`} />` : null}
    <${Addresses} addresses=${addresses} workers=${workers.data} health=${known} who=${who} onDisable=${(one) => setDialog({ what: "disable", one })} again=${again} />
    ${dialog?.what === "disable" ? html`<${Disable} one=${dialog.one} onClose=${close} again=${again} />` : null}
    ${dialog?.what === "policy" ? html`<${PolicyForm} one=${dialog.one} info=${dialog.info} onClose=${close} again=${again} />` : null}`;
}

function HealthOf({ one }) {
  const { tone, words } = HEALTH[one.state];
  return html`<${Badge} tone=${tone}>${one.state}<//> <span>${words(one)}</span>
    ${one.state === "disabled" && one.disabled_at ? html`<div class="faint">since <${Ago} at=${one.disabled_at} />${one.disabled_by ? ` by ${one.disabled_by}` : ""}${one.disabled_reason ? `: ${one.disabled_reason}` : ""}</div>` : null}
    ${one.heartbeat_at ? html`<div class="faint">last heartbeat <${Ago} at=${one.heartbeat_at} /></div>` : null}`;
}

function Runs({ one }) {
  const states = Object.entries(one.run_counts).filter(([, number]) => number);
  if (!states.length) return html`<span class="faint">none yet</span>`;
  return html`<div class="states">${states.map(([state, number]) => html`<a key=${state} href=${href("runs", "", { workflow: one.name, state })}>${count(number)}${one.capped_states?.includes(state) ? "+" : ""} <${State} state=${state} /></a>`)}</div>`;
}

function Spent({ sum, known }) {
  if (!known) return null;
  if (!sum) return html`<span class="faint">–</span>`;
  return html`<span title="${plural(sum.calls, "call")}, ${count(sum.input + sum.output)} tokens">${sum.calls > sum.unpriced ? money(sum.nano / NANO) : "price not known"}</span>`;
}

const BREACH = { notify: "only told", refuse: "no more runs begin that day", pause: "disabled until the day is over", kill: "disabled until someone enables it" };

function PolicyOf({ info, known }) {
  if (!known) return null;
  if (!info) return html`<span class="faint">no limits</span>`;
  const { policy } = info;
  return html`<div>
    ${policy.runs_per_day !== null ? html`<div>${count(info.run_count)} of ${plural(policy.runs_per_day, "run")} today</div>` : null}
    ${policy.usd_per_day !== null ? html`<div>${money(info.usd)} of ${money(policy.usd_per_day)} today</div>` : null}
    <div class="faint">then: ${BREACH[policy.on_breach]}</div>
    ${info.breach ? html`<${Badge} tone="bad">reached<//> <span class="faint"><${Ago} at=${info.breach.at} /></span>` : null}
  </div>`;
}

function Disable({ one, onClose, again }) {
  const concerned = unfinished(one.run_counts);
  return html`<${Confirm} title="Disable ${one.name}?" yes="Disable it everywhere" onClose=${onClose}
    words=${html`${concerned ? html`<strong>${plural(concerned, "unfinished run")}</strong> ${concerned === 1 ? "is" : "are"} concerned: ${concerned === 1 ? "it stops" : "they stop"} at the next recorded point, on every worker.` : "It has no unfinished runs."} None of its runs start until you enable it again. Nothing is lost: what is recorded stays, and runs continue from there.`}
    act=${async () => {
      await post(`/v1/agents/${part(one.name)}/disable`, {});
      toast(`${one.name} is disabled.`, "good");
      again();
    }} />`;
}

function PolicyForm({ one, info, onClose, again }) {
  const close = useClosing(onClose);
  const policy = info?.policy ?? { runs_per_day: null, usd_per_day: null, on_breach: "refuse" };
  const [runs, setRuns] = useState(String(policy.runs_per_day ?? ""));
  const [usd, setUsd] = useState(String(policy.usd_per_day ?? ""));
  const [breach, setBreach] = useState(policy.on_breach);
  const path = `/v1/agents/${part(one.name)}/policy`;
  const check = () => {
    const found = {};
    if (!/^\d*$/.test(runs.trim())) found.runs_per_day = "A whole number, or nothing for no limit.";
    if (usd.trim() && !(Number(usd) >= 0)) found.usd_per_day = "A number of dollars, or nothing for no limit.";
    if (!runs.trim() && !usd.trim()) found.runs_per_day = "A policy limits something: give at least one of the two.";
    return found;
  };
  const { faults, problem, busy, onSubmit } = useEntries(check, async () => {
    const number = (text) => (text.trim() ? Number(text) : null);
    await put(path, { runs_per_day: number(runs), usd_per_day: number(usd), on_breach: breach });
    again();
    close();
  });
  return html`<${Dialog} title="Policy of ${one.name}" onClose=${onClose}>
    <form onSubmit=${onSubmit} novalidate>
      <p class="faint">Days are those of UTC. Servers look about once a second: what is in flight when a limit is reached is paid for as well. For a limit that holds to the cent, give the runs budgets.</p>
      <${Entry} label="Runs a day" hint="nothing: no limit" inputmode="numeric" value=${runs} set=${setRuns} fault=${faults.runs_per_day} />
      <${Entry} label="Dollars a day" hint="nothing: no limit" inputmode="decimal" value=${usd} set=${setUsd} fault=${faults.usd_per_day} />
      <label class="field">When a limit is reached
        <select value=${breach} onChange=${(event) => setBreach(event.target.value)}>${Object.entries(BREACH).map(([value, words]) => html`<option key=${value} value=${value} selected=${value === breach}>${value}: ${words}</option>`)}</select>
      </label>
      <${ProblemNote} problem=${problem} />
      <div class="does">
        ${info ? html`<${Act} tone="danger" disabled=${busy} act=${async () => { await remove(path); again(); close(); }} done="It has no policy any more.">Remove it<//>` : null}
        <button type="button" onClick=${onClose}>Leave it</button>
        <button class="main" disabled=${busy}>Save</button>
      </div>
    </form>
  <//>`;
}

function Addresses({ addresses, workers, health, who, onDisable, again }) {
  const rows = addresses.data?.items ?? [];
  if (!addresses.data) return null;
  const healthOf = new Map(health.map((one) => [one.name, one]));
  const listeners = (name) => (workers?.items ?? []).filter((one) => one.is_listener && one.is_alive && one.workflows.includes(name));
  return html`<section class="below-list"><h2>Addresses</h2>
    <p class="faint">Work is sent to them over HTTP, and taken by programs that listen: in any language, or by a webhook.</p>
    ${rows.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="addresses"><table class="list">
      <thead><tr>${["Address", "Listeners", "Runs", "Settings"].map((one) => html`<th scope="col">${one}</th>`)}<th scope="col"><span class="out-of-sight">acts</span></th></tr></thead>
      <tbody>${rows.map((one) => {
        const there = listeners(one.name);
        const told = healthOf.get(one.name);
        return html`<tr key=${one.name}>
          <td data-name="Address" class="wide"><div class="cell"><strong>${one.name}</strong>${told?.state === "disabled" ? html` <${Badge} tone="bad">disabled<//>` : null}</div></td>
          <td data-name="Listeners" class="wide"><div class="cell">${there.map((two) => html`<div key=${two.id}>${two.name || `listener ${two.id}`} <span class="faint">at ${two.host}, heard of <${Ago} at=${two.heartbeat_at} /></span></div>`)}
            ${one.webhook ? html`<div>webhook <code>${one.webhook}</code>${one.webhook_disabled_reason ? html` <${Badge} tone="bad">stopped<//> ${one.webhook_disabled_reason}` : null}</div>` : null}
            ${workers && !there.length && !one.webhook ? html`<span class="faint">nobody listens: what is sent waits</span>` : null}</div></td>
          <td data-name="Runs" class="wide">${told ? html`<${Runs} one=${told} />` : null}</td>
          <td data-name="Settings" class="wide faint">${plural(one.max_deliveries, "delivery", "deliveries")} at most, silent after ${one.lease} s${one.deadline ? `, ${one.deadline} s in all` : ""}</td>
          <td data-name="">${told ? html`<div class="row-acts"><a class="button" href=${href("runs", "", { workflow: one.name })}>Runs</a>${told.state === "disabled"
            ? html`<${ScopedAct} who=${who} scope="operate" tone="main" act=${() => post(`/v1/agents/${part(one.name)}/enable`, {}).then(again)} done="${one.name} is enabled.">Enable<//>`
            : html`<${ScopedButton} who=${who} scope="operate" tone="danger" aria-label="disable ${one.name}" onClick=${() => onDisable(told)}>Disable<//>`}</div>` : null}</td>
        </tr>`;
      })}</tbody>
    </table></div>` : html`<${Empty}>Nobody has sent to an address yet. <code>holdfast send NAME '{"…": 1}'</code> sends work to one, and whoever calls <code>POST /v1/addresses/NAME/claim</code> takes it.<//>`}
  </section>`;
}
