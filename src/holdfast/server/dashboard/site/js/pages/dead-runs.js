// Runs whose workers died too often: what was in flight, and how to retry them.

import { html, useState } from "../html.js";
import { getPages, part, post } from "../api.js";
import { useLoaded } from "../data.js";
import { plural } from "../format.js";
import { Ago, List, ProblemNote, toast, useMarks } from "../components.js";
import { go, href } from "../router.js";
import { lacks, ScopeNote } from "../scopes.js";

const PAGE = 50;

export function DeadPage({ query, who }) {
  const [pages, setPages] = useState(1);
  const { data, problem, again } = useLoaded((signal) => getPages("/v1/dead-runs", { workflow: query.workflow, limit: PAGE }, pages, signal), [query.workflow, pages]);
  const { marks, mark } = useMarks();
  const [refused, setRefused] = useState(() => new Map()); // run -> why it was not retried
  const [busy, setBusy] = useState(false);
  const rows = data?.items ?? [];
  const why = lacks(who, "operate");
  const marked = rows.filter((one) => marks.has(one.id));
  const retry = async (ids, options = {}) => {
    setBusy(true);
    const told = new Map(refused);
    let done = 0;
    for (const id of ids) {
      try {
        await post(`/v1/runs/${part(id)}/retry`, options);
        told.delete(id);
        done += 1;
      } catch (error) {
        told.set(id, error);
      }
    }
    setRefused(told);
    setBusy(false);
    mark(ids.filter((id) => !told.has(id)), false);
    if (done) toast(`${plural(done, "run")} ${done === 1 ? "goes" : "go"} on from where ${done === 1 ? "it" : "they"} stopped.`, "good");
    again();
  };
  return html`<header><h1>Dead runs</h1>
      <div class="right">
        ${rows.length ? html`<label class="line"><input type="checkbox" checked=${marked.length === rows.length} onChange=${(event) => mark(rows.map((one) => one.id), event.target.checked)} />all of these</label>` : null}
        <button class="main" disabled=${busy || !marked.length || Boolean(why)} title=${why || undefined} onClick=${() => retry(marked.map((one) => one.id))}>Retry ${marked.length ? plural(marked.length, "run") : "the marked ones"}</button>
      </div>
    </header>
    ${query.workflow ? html`<p>Only those of <strong>${query.workflow}</strong>. <a href=${href("dead")}>Show all</a></p>` : null}
    <${ProblemNote} problem=${problem} again=${again} />
    <${ScopeNote} who=${who} scope="operate" what="You can look, but not retry." />
    ${data ? html`<${List} label="dead runs" rows=${rows} keyOf=${(one) => one.id} open=${(one) => go("runs", one.id)}
      empty=${html`<p>No run is dead.</p><p>A run is dead when workers that held nothing else died several times, without anything new recorded. It is not executed again until you retry it. <code>max_deliveries</code> sets how many deaths that takes.</p>`}
      columns=${[
        { name: "", unseen: "mark", of: (one) => html`<input type="checkbox" aria-label="mark ${one.id}" checked=${marks.has(one.id)} onChange=${(event) => mark([one.id], event.target.checked)} />` },
        { name: "Run", tone: "wide", of: (one) => html`<a href=${href("runs", one.id)}>${one.id}</a><div class="faint">${one.workflow}</div>` },
        { name: "Dead", of: (one) => html`<${Ago} at=${one.since} />` },
        { name: "Deaths", of: (one) => html`${plural(one.death_count, "worker")}${one.worker ? html`<div class="faint">the last was ${one.worker}</div>` : null}` },
        { name: "It was doing", tone: "wide", of: (one) => html`<${Doing} one=${one} />` },
        { name: "", tone: "wide", unseen: "acts", of: (one) => html`<button disabled=${busy || Boolean(why)} title=${why || undefined} aria-label="retry ${one.id}" onClick=${() => retry([one.id])}>Retry</button>
          ${refused.has(one.id) ? html`<${Refused} problem=${refused.get(one.id)} again=${() => retry([one.id], { run_again: true })} />` : null}` },
      ]} />` : null}
    ${data?.next ? html`<p><button onClick=${() => setPages(pages + 1)}>Older ones</button></p>` : null}`;
}

function Doing({ one }) {
  return html`${one.in_flight.length
    ? one.in_flight.map((step) => html`<div key=${step.number}><code>${step.name}</code> <span class="faint">number ${step.number}, attempt ${step.attempt}${step.since ? html`, begun <${Ago} at=${step.since} />` : null}</span></div>`)
    : html`<div class="faint">not known: its worker died at once</div>`}
    <div class="faint">${one.record_count ? html`${plural(one.record_count, "record")}, the last of <code>${one.last_step_name}</code>` : "nothing was recorded"}</div>
    ${one.reason ? html`<div>${one.reason}</div>` : null}`;
}

function Refused({ problem, again }) {
  return html`<div class="note bad" role="alert">${problem.message}
    ${problem.told?.needs_run_again ? html`<div class="does"><button class="danger" onClick=${again}>It may run again: retry</button></div>` : null}</div>`;
}
