// The processes that take up runs.

import { html } from "../html.js";
import { useGet } from "../data.js";
import { plural } from "../format.js";
import { Ago, Badge, List, ProblemNote } from "../components.js";
import { href } from "../router.js";

export function WorkersPage() {
  const { data, problem, again } = useGet("/v1/workers", {}, { pace: 3000 });
  const rows = [...(data?.items ?? [])].sort((a, b) => b.is_alive - a.is_alive || Date.parse(b.started_at) - Date.parse(a.started_at));
  const live = rows.filter((one) => one.is_alive).length;
  return html`<header><h1>Workers</h1>${data ? html`<span class="faint">${plural(live, "live worker")}${rows.length > live ? `, ${rows.length - live} dead or retired` : ""}</span>` : null}</header>
    <${ProblemNote} problem=${problem} again=${again} />
    ${data ? html`<${List} label="workers" rows=${rows} keyOf=${(one) => one.id}
      empty=${html`<p>No worker is there.</p><p><code>holdfast worker app:my_agent</code> starts one that serves the workflows and agents of a module; programs that listen to addresses stand here, too. A dead worker stays here as long as unfinished runs refer to it.</p>`}
      columns=${[
        { name: "Worker", tone: "wide", of: (one) => html`<strong>${one.name || one.id}</strong> <span class="faint">no. ${one.id}</span>` },
        { name: "State", of: (one) => html`<${Badge} tone=${one.is_alive ? "good" : one.state === "retired" ? "" : "bad"}>${one.is_alive ? "live" : one.state === "live" ? "silent" : one.state}<//>` },
        { name: "Heartbeat", of: (one) => html`<${Ago} at=${one.heartbeat_at} />` },
        { name: "Where", tone: "wide", of: (one) => html`${one.host}<span class="faint">${one.is_listener ? ", listens over HTTP" : `, process ${one.pid}`}</span>` },
        { name: "Since", of: (one) => html`<${Ago} at=${one.started_at} />` },
        { name: "Serves", tone: "wide", of: (one) => html`<${Served} one=${one} />` },
        { name: "Runs", tone: "wide", of: (one) => html`<${Held} one=${one} />` },
      ]} />` : null}`;
}

function Served({ one }) {
  const shown = one.workflows.slice(0, 6).join(", ");
  const rest = one.workflows.length - 6;
  return html`<span title=${one.workflows.join(", ")}>${shown || "nothing"}${rest > 0 ? ` and ${rest} more` : ""}</span>${one.queues ? html`<div class="faint">from ${one.queues.length === 1 ? "queue" : "queues"} ${one.queues.join(", ")}</div>` : null}`;
}

function Held({ one }) {
  if (!one.claimed_runs.length) return html`<span class="faint">none</span>`;
  return html`<div class="held">${one.claimed_runs.map((run) => html`<a key=${run.id} href=${href("runs", run.id)}>${run.id}</a>`)}${one.has_more_runs ? html`<span class="faint">and more</span>` : null}</div>`;
}
