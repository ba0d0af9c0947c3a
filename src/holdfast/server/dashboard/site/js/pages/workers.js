// The processes that execute runs.

import { html } from "../html.js";
import { Badge, List, ProblemNote, RelativeTime } from "../components.js";
import { useGet } from "../data.js";
import { pluralize } from "../format.js";
import { buildHref } from "../router.js";

export function WorkersPage() {
  const { data, problem, refresh } = useGet("/v1/workers", {}, { minIntervalMs: 3000 });
  const rows = [...(data?.items ?? [])].sort((a, b) => b.is_alive - a.is_alive || Date.parse(b.started_at) - Date.parse(a.started_at));
  const liveCount = rows.filter((one) => one.is_alive).length;
  return html`<header><h1>Workers</h1>${data ? html`<span class="faint">${pluralize(liveCount, "live worker")}${rows.length > liveCount ? `, ${rows.length - liveCount} dead or retired` : ""}</span>` : null}</header>
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    ${data ? html`<${List} label="workers" rows=${rows} getKey=${(one) => one.id}
      empty=${html`<p>No worker is there.</p><p><code>holdfast worker app:my_agent</code> starts one that serves the workflows and agents of a module; programs that listen to addresses stand here, too. A dead worker stays here as long as unfinished runs refer to it.</p>`}
      columns=${[
        { name: "Worker", tone: "wide", render: (one) => html`<strong>${one.name || one.id}</strong> <span class="faint">no. ${one.id}</span>` },
        { name: "State", render: (one) => html`<${Badge} tone=${one.is_alive ? "good" : one.state === "retired" ? "" : "bad"}>${one.is_alive ? "live" : one.state === "live" ? "silent" : one.state}<//>` },
        { name: "Heartbeat", render: (one) => html`<${RelativeTime} at=${one.heartbeat_at} />` },
        { name: "Where", tone: "wide", render: (one) => html`${one.host}<span class="faint">${one.is_listener ? ", listens over HTTP" : `, process ${one.pid}`}</span>` },
        { name: "Since", render: (one) => html`<${RelativeTime} at=${one.started_at} />` },
        { name: "Serves", tone: "wide", render: (one) => html`<${ServedWorkflows} one=${one} />` },
        { name: "Runs", tone: "wide", render: (one) => html`<${ClaimedRuns} one=${one} />` },
      ]} />` : null}`;
}

function ServedWorkflows({ one }) {
  const shown = one.workflows.slice(0, 6).join(", ");
  const hiddenCount = one.workflows.length - 6;
  return html`<span title=${one.workflows.join(", ")}>${shown || "nothing"}${hiddenCount > 0 ? ` and ${hiddenCount} more` : ""}</span>${one.queues ? html`<div class="faint">from ${one.queues.length === 1 ? "queue" : "queues"} ${one.queues.join(", ")}</div>` : null}`;
}

function ClaimedRuns({ one }) {
  if (!one.claimed_runs.length) return html`<span class="faint">none</span>`;
  return html`<div class="held">${one.claimed_runs.map((run) => html`<a key=${run.id} href=${buildHref("runs", run.id)}>${run.id}</a>`)}${one.has_more_runs ? html`<span class="faint">and more</span>` : null}</div>`;
}
