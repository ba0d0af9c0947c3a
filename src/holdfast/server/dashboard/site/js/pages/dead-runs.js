// Dead runs: what was in flight, and how to retry them.

import { html, useState } from "../html.js";
import { encodePart, getPages, post } from "../api.js";
import { List, ProblemNote, RelativeTime, showToast, useMarks } from "../components.js";
import { useLoader } from "../data.js";
import { pluralize } from "../format.js";
import { buildHref, navigate } from "../router.js";
import { describeMissingScope, ScopeNote } from "../scopes.js";

const PAGE_SIZE = 50;

export function DeadRunsPage({ query, caller }) {
  const [pageCount, setPageCount] = useState(1);
  const { data, problem, refresh } = useLoader((signal) => getPages("/v1/dead-runs", { workflow: query.workflow, limit: PAGE_SIZE }, pageCount, signal), [query.workflow, pageCount]);
  const { marks, mark } = useMarks();
  const [retryProblems, setRetryProblems] = useState(() => new Map()); // run -> why it was not retried
  const [isBusy, setBusy] = useState(false);
  const rows = data?.items ?? [];
  const missingScope = describeMissingScope(caller, "operate");
  const marked = rows.filter((one) => marks.has(one.id));
  const retry = async (ids, options = {}) => {
    setBusy(true);
    const problems = new Map(retryProblems);
    let retriedCount = 0;
    for (const id of ids) {
      try {
        await post(`/v1/runs/${encodePart(id)}/retry`, options);
        problems.delete(id);
        retriedCount += 1;
      } catch (error) {
        problems.set(id, error);
      }
    }
    setRetryProblems(problems);
    setBusy(false);
    mark(ids.filter((id) => !problems.has(id)), false);
    if (retriedCount) showToast(`${pluralize(retriedCount, "run")} ${retriedCount === 1 ? "goes" : "go"} on from where ${retriedCount === 1 ? "it" : "they"} stopped.`, "good");
    refresh();
  };
  return html`<header><h1>Dead runs</h1>
      <div class="right">
        ${rows.length ? html`<label class="line"><input type="checkbox" checked=${marked.length === rows.length} onChange=${(event) => mark(rows.map((one) => one.id), event.target.checked)} />all of these</label>` : null}
        <button class="main" disabled=${isBusy || !marked.length || Boolean(missingScope)} title=${missingScope || undefined} onClick=${() => retry(marked.map((one) => one.id))}>Retry ${marked.length ? pluralize(marked.length, "run") : "the marked ones"}</button>
      </div>
    </header>
    ${query.workflow ? html`<p>Only those of <strong>${query.workflow}</strong>. <a href=${buildHref("dead")}>Show all</a></p>` : null}
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    <${ScopeNote} caller=${caller} scope="operate" hint="You can look, but not retry." />
    ${data ? html`<${List} label="dead runs" rows=${rows} getKey=${(one) => one.id} onOpen=${(one) => navigate("runs", one.id)}
      empty=${html`<p>No run is dead.</p><p>A run is dead when workers that held nothing else died several times, without anything new recorded. It is not executed again until you retry it. <code>max_deliveries</code> sets how many deaths that takes.</p>`}
      columns=${[
        { name: "", hiddenName: "mark", render: (one) => html`<input type="checkbox" aria-label="mark ${one.id}" checked=${marks.has(one.id)} onChange=${(event) => mark([one.id], event.target.checked)} />` },
        { name: "Run", tone: "wide", render: (one) => html`<a href=${buildHref("runs", one.id)}>${one.id}</a><div class="faint">${one.workflow}</div>` },
        { name: "Dead", render: (one) => html`<${RelativeTime} at=${one.since} />` },
        { name: "Deaths", render: (one) => html`${pluralize(one.death_count, "worker")}${one.worker ? html`<div class="faint">the last was ${one.worker}</div>` : null}` },
        { name: "It was doing", tone: "wide", render: (one) => html`<${InFlightSteps} one=${one} />` },
        { name: "", tone: "wide", hiddenName: "acts", render: (one) => html`<button disabled=${isBusy || Boolean(missingScope)} title=${missingScope || undefined} aria-label="retry ${one.id}" onClick=${() => retry([one.id])}>Retry</button>
          ${retryProblems.has(one.id) ? html`<${RetryProblem} problem=${retryProblems.get(one.id)} onRetry=${() => retry([one.id], { run_again: true })} />` : null}` },
      ]} />` : null}
    ${data?.next ? html`<p><button onClick=${() => setPageCount(pageCount + 1)}>Older ones</button></p>` : null}`;
}

function InFlightSteps({ one }) {
  return html`${one.in_flight.length
    ? one.in_flight.map((step) => html`<div key=${step.number}><code>${step.name}</code> <span class="faint">number ${step.number}, attempt ${step.attempt}${step.since ? html`, begun <${RelativeTime} at=${step.since} />` : null}</span></div>`)
    : html`<div class="faint">not known: its worker died at once</div>`}
    <div class="faint">${one.record_count ? html`${pluralize(one.record_count, "record")}, the last of <code>${one.last_step_name}</code>` : "nothing was recorded"}</div>
    ${one.reason ? html`<div>${one.reason}</div>` : null}`;
}

function RetryProblem({ problem, onRetry }) {
  return html`<div class="note bad" role="alert">${problem.message}
    ${problem.details?.needs_run_again ? html`<div class="does"><button class="danger" onClick=${onRetry}>It may run again: retry</button></div>` : null}</div>`;
}
