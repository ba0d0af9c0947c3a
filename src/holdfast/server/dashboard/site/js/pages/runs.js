// All runs, the newest first: which ones, how they are, and what can be done to several at once. Which ones are shown
// stands in the address, so that a view can be linked to.

import { html, useEffect, useRef, useState } from "../html.js";
import { part, post } from "../api.js";
import { useChanges, useGet, useNow } from "../data.js";
import { clock, count, duration, plural, short } from "../format.js";
import { useKeys } from "../shortcuts.js";
import { SPANS, STATES, states, toggled, why } from "./runs/list.js";
import { Act, Ago, Dialog, List, Money, ProblemNote, State, toast, useClosing, useMarks } from "../components.js";
import { go, href, refine } from "../router.js";
import { lacks, ScopedButton } from "../scopes.js";
import { useRuns } from "./runs/list-loader.js";
import { StartDialog } from "./runs/start-dialog.js";

const NO_FILTER = { state: "", workflow: "", tag: "", parent: "", q: "", since: "" };
const HELD_BELOW = 150; // pixels: whoever has scrolled so far down is reading

export function RunsPage({ query, who }) {
  const { marks, mark, unmark } = useMarks();
  const [starting, setStarting] = useState(false);
  const holding = useRef(false);
  const list = useRuns(query, () => holding.current || window.scrollY > HELD_BELOW);
  const { overview } = useChanges();
  const isFiltered = Object.keys(NO_FILTER).some((name) => query[name]);
  const search = useRef(null);
  const mayStart = !lacks(who, "submit");
  const start = () => setStarting(true);
  useKeys({
    "/": ["search", () => search.current?.focus()],
    ...(mayStart ? { n: ["start a run", start] } : {}),
  });
  const marked = list.rows.filter((one) => marks.has(one.id));
  holding.current = marked.length > 0; // those that are not on the page any more hold nothing up
  const showNew = () => {
    list.show();
    window.scrollTo(0, 0);
  };
  return html`<header><h1>Runs</h1>
      <div class="right"><${ScopedButton} who=${who} scope="submit" tone="main" onClick=${start}>Start a run<//></div>
    </header>
    <${Filters} query=${query} overview=${overview} search=${search} isFiltered=${isFiltered} />
    <${ProblemNote} problem=${list.problem} again=${list.again} />
    ${list.fresh ? html`<div class="new-runs" role="status"><button class="main" onClick=${showNew}>${plural(list.fresh, "new run")}</button></div>` : null}
    ${marked.length ? html`<${Bulk} runs=${marked} who=${who} unmark=${unmark} refresh=${list.refresh} />` : null}
    ${list.loaded || list.rows.length ? html`<${List} label="runs" rows=${list.rows} keyOf=${(one) => one.id} open=${(one) => go("runs", one.id)}
      keys=${{ x: ["mark the row", (one) => mark([one.id], !marks.has(one.id))] }}
      toneOf=${(one) => (one.gone ? "gone" : undefined)}
      empty=${list.looking ? "Looking …" : isFiltered ? html`<${NothingMatches} />` : html`<${NoRuns} start=${mayStart ? start : null} />`}
      columns=${columns({ marks, mark, rows: list.rows })} />` : html`<p class="faint">Loading …</p>`}
    <${Further} list=${list} />
    ${starting ? html`<${StartDialog} workflow=${query.workflow} onClose=${() => setStarting(false)} />` : null}`;
}

// Which runs

function Filters({ query, overview, search, isFiltered }) {
  const { data } = useGet("/v1/agents", {}, { live: false });
  const names = [...new Set([...(data?.items ?? []).map((one) => one.name), ...(query.workflow ? [query.workflow] : [])])].sort();
  const on = states(query.state);
  return html`<div class="filters">
    <${Search} value=${query.q ?? ""} place=${search} />
    <div class="chips" role="group" aria-label="states">
      ${STATES.map((state) => html`<button key=${state} class="chip" aria-pressed=${on.includes(state) ? "true" : "false"} onClick=${() => refine({ state: toggled(query.state, state) })}>
        ${state}${overview ? html`<span class="count">${number(overview.runs[state])}</span>` : null}
      </button>`)}
    </div>
    <div class="picks">
      <select aria-label="workflow or agent" value=${query.workflow ?? ""} onChange=${(event) => refine({ workflow: event.target.value })}>
        <option value="">all workflows</option>
        ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
      <${Tag} value=${query.tag ?? ""} />
      <select aria-label="created" value=${SPANS[query.since] ? query.since : ""} onChange=${(event) => refine({ since: event.target.value })}>
        <option value="">whenever created</option>
        ${Object.entries(SPANS).map(([name, [words]]) => html`<option key=${name} value=${name}>${words}</option>`)}
      </select>
      ${query.parent ? html`<button class="chip" onClick=${() => refine({ parent: "" })} aria-label="started by ${query.parent}: show others, too">started by ${query.parent} ✕</button>` : null}
      ${isFiltered ? html`<button class="plain" onClick=${() => refine(NO_FILTER)}>Show all</button>` : null}
    </div>
  </div>`;
}

const number = (told) => (told ? `${short(told.count)}${told.has_more ? "+" : ""}` : "");

// What is typed is looked for when the typing rests.
function Search({ value, place }) {
  const [typed, setTyped] = useState(value);
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) {
      sent.current = value; // somebody else has changed it: a link, or "show all"
      setTyped(value);
    }
  }, [value]);
  useEffect(() => {
    if (typed === sent.current) return undefined;
    const timer = setTimeout(() => {
      sent.current = typed;
      refine({ q: typed });
    }, 250);
    return () => clearTimeout(timer);
  }, [typed]);
  const leave = (event) => {
    if (event.key !== "Escape") return;
    if (typed) setTyped("");
    else event.target.blur();
  };
  return html`<input class="search" type="search" ref=${place} value=${typed} aria-label="search" placeholder="Search ids, workflows, tags and errors  ( / )"
    onInput=${(event) => setTyped(event.target.value)} onKeyDown=${leave} autocomplete="off" spellcheck=${false} />`;
}

function Tag({ value }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  const take = () => typed.trim() !== value && refine({ tag: typed.trim() });
  return html`<input class="tag-filter" value=${typed} aria-label="tag" placeholder="tag" autocomplete="off" spellcheck=${false}
    onInput=${(event) => setTyped(event.target.value)} onBlur=${take} onKeyDown=${(event) => event.key === "Enter" && take()} />`;
}

// The list

function columns({ marks, mark, rows }) {
  const all = rows.length > 0 && rows.every((one) => marks.has(one.id));
  const ids = rows.map((one) => one.id);
  return [
    { name: "Mark", head: html`<input type="checkbox" aria-label="mark all" checked=${all} onChange=${(event) => mark(ids, event.target.checked)} />`,
      of: (one) => html`<input type="checkbox" aria-label="mark ${one.id}" checked=${marks.has(one.id)} onChange=${(event) => mark([one.id], event.target.checked)} />` },
    { name: "Run", tone: "run", of: (one) => html`<a class="mono" href=${href("runs", one.id)} title=${one.id}>${one.id}</a>` },
    { name: "Workflow", tone: "flow", of: (one) => html`<button class="plain link" title="show only its runs" onClick=${() => refine({ workflow: one.workflow })}>${one.workflow}</button>` },
    { name: "State", of: (one) => html`<span><${State} state=${one.state} paused=${one.is_paused} cancelling=${one.is_cancelling} /></span>` },
    { name: "What of it", tone: "wide", of: (one) => html`<${Why} run=${one} />` },
    { name: "Created", tone: "when", of: (one) => html`<${Ago} at=${one.created_at} />` },
    { name: "Took", tone: "number", of: (one) => html`<${Took} run=${one} />` },
    { name: "Tokens", tone: "number", of: (one) => (one.usage ? html`<span title="${count(one.usage.input_tokens)} in, ${count(one.usage.output_tokens)} out">${short(one.usage.input_tokens + one.usage.output_tokens)}</span>` : null) },
    { name: "Cost", tone: "number", of: (one) => html`<${Money} of=${one.usage?.usd} />` },
    { name: "Tags", tone: "tags", of: (one) => (one.tags.length ? html`<span>${one.tags.map((tag) => html`<button key=${tag} class="chip small" title="show only runs with this tag" onClick=${() => refine({ tag })}>${tag}</button>`)}</span>` : null) },
  ];
}

function Why({ run }) {
  const told = why(run);
  return told ? html`<span class="why ${told.tone}" title=${told.whole}>${told.words}</span>` : null;
}

function Took({ run }) {
  const now = useNow();
  const end = run.finished_at ? Date.parse(run.finished_at) : now;
  const words = duration((end - Date.parse(run.created_at)) / 1000);
  return run.finished_at ? words : html`<span class="faint" title="since it was created">${words}</span>`;
}

// How far back the list has come, and what else there is.
function Further({ list }) {
  const { looking, loaded, until, next, rows } = list;
  if (looking && until) {
    return html`<p class="further" role="status">Looked back to ${clock(until)}; ${plural(rows.length, "run")} found so far. <button onClick=${list.stop}>Stop</button></p>`;
  }
  if (!loaded || !next) return rows.length > 10 ? html`<p class="further faint">That is all.</p>` : null;
  return html`<p class="further">
    ${until ? html`<span>Looked back to ${clock(until)}. </span>` : null}
    <button disabled=${looking} onClick=${list.older}>${until ? "Look further back" : "Older runs"}</button>
  </p>`;
}

const NothingMatches = () => html`<p><strong>No run matches.</strong></p>
  <p>Text is looked for in ids, names of workflows, tags and errors, in upper or lower case. <button class="plain link" onClick=${() => refine(NO_FILTER)}>Show all runs</button></p>`;

const TEN_LINES = `import asyncio
from holdfast import step, workflow

@step(retries=3)
async def fetch(customer: str) -> list[int]:
    return [1, 2, 3]  # call an API, a model, a database

@workflow(id="report-{customer}")
async def report(customer: str) -> int:
    return sum(await fetch(customer))

asyncio.run(report("acme"))`;

const NoRuns = ({ start }) => html`<p><strong>There are no runs yet.</strong> Whatever is run on this server's store appears here by itself, as it happens. For a first one, run this with <code>HOLDFAST_URL</code> set to the store:</p>
  <pre class="value" tabindex="0" role="region" aria-label="a first run">${TEN_LINES}</pre>
  <p>${start ? html`Or start one of a workflow that a worker serves: <button class="plain link" onClick=${start}>start a run</button>. ` : null}<code>holdfast demo</code> shows an agent that survives its worker.</p>`;

// Several at once

const DOES = {
  pause: { label: "Pause", fits: (run) => !run.finished_at && !run.is_paused, words: "Steps in flight may end; nothing new begins until they are resumed." },
  resume: { label: "Resume", fits: (run) => run.is_paused && !run.finished_at, words: "They go on from where they were paused." },
  cancel: { label: "Cancel", tone: "danger", fits: (run) => !run.finished_at, words: "What they are doing is interrupted, and steps with a compensation are undone." },
  retry: { label: "Retry", fits: (run) => ["failed", "cancelled", "dead"].includes(run.state), body: {}, words: "They go on from where they went wrong; what was recorded before that is not done again." },
};
const AT_ONCE = 6;

function Bulk({ runs, who, unmark, refresh }) {
  const [asking, setAsking] = useState(null);
  const ask = (name) => setAsking({ name, runs: runs.filter(DOES[name].fits), others: runs.filter((one) => !DOES[name].fits(one)).length });
  return html`<div class="bulk" role="region" aria-label="marked runs">
    <strong>${plural(runs.length, "run")} marked</strong>
    ${Object.entries(DOES).map(([name, one]) => html`<${ScopedButton} key=${name} who=${who} scope="operate" tone=${one.tone ?? ""} disabled=${!runs.some(one.fits)} onClick=${() => ask(name)}>${one.label}<//>`)}
    <button class="plain" onClick=${unmark}>Unmark</button>
    ${lacks(who, "operate") ? html`<span class="faint">${lacks(who, "operate")}</span>` : null}
    ${asking ? html`<${Sure} ...${asking} unmark=${unmark} refresh=${refresh} onClose=${() => setAsking(null)} />` : null}
  </div>`;
}

function Sure({ name, runs, others, unmark, refresh, onClose }) {
  const close = useClosing(onClose);
  const { label, words, tone, body } = DOES[name];
  const [done, setDone] = useState(0);
  const act = async () => {
    const rest = [...runs];
    const refused = [];
    const work = async () => {
      for (let one = rest.shift(); one; one = rest.shift()) {
        try {
          await post(`/v1/runs/${part(one.id)}/${name}`, body);
        } catch (problem) {
          refused.push(`${one.id}: ${problem.message}`);
        }
        setDone((before) => before + 1);
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    close();
    refresh();
    if (runs.length > refused.length) toast(`${label}: ${plural(runs.length - refused.length, "run")}.`, "good");
    if (refused.length) toast(`${plural(refused.length, "run")} refused it. ${refused[0]}`, "bad");
    else unmark();
  };
  return html`<${Dialog} title="${label} ${plural(runs.length, "run")}?" onClose=${onClose}>
    <p>${words}</p>
    ${others ? html`<p class="faint">${plural(others, "marked run")} cannot be: ${others === 1 ? "it is" : "they are"} left alone.</p>` : null}
    ${done ? html`<p role="status">${done} of ${runs.length} …</p>` : null}
    <div class="does"><button onClick=${onClose}>Leave it</button><${Act} tone=${tone || "main"} act=${act}>${label} ${plural(runs.length, "run")}<//></div>
  <//>`;
}
