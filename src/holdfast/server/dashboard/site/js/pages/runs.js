// All runs, newest first: filters, the list, and actions on several runs at once. The filters are in the address, so
// that links to a view work.

import { html, useEffect, useRef, useState } from "../html.js";
import { encodePart, post } from "../api.js";
import { ActionButton, Dialog, List, Money, ProblemNote, RelativeTime, showToast, StateBadge, useClose, useMarks } from "../components.js";
import { useChangeFeed, useGet, useNow } from "../data.js";
import { formatCount, formatDuration, formatShortCount, formatTime, pluralize } from "../format.js";
import { buildHref, navigate, updateQuery } from "../router.js";
import { describeMissingScope, ScopedButton } from "../scopes.js";
import { useShortcuts } from "../shortcuts.js";
import { useRunList } from "./runs/list-loader.js";
import { describeStatus, parseStates, STATES, TIME_RANGES, toggleState } from "./runs/list.js";
import { StartDialog } from "./runs/start-dialog.js";

const NO_FILTER = { state: "", workflow: "", tag: "", parent: "", q: "", since: "" };
const HELD_SCROLL_PX = 150; // a list that is scrolled further down is being read

export function RunsPage({ query, caller }) {
  const { marks, mark, unmark } = useMarks();
  const [isStarting, setStarting] = useState(false);
  const hasMarked = useRef(false);
  const list = useRunList(query, () => hasMarked.current || window.scrollY > HELD_SCROLL_PX);
  const { overview } = useChangeFeed();
  const isFiltered = Object.keys(NO_FILTER).some((name) => query[name]);
  const search = useRef(null);
  const canStart = !describeMissingScope(caller, "submit");
  const start = () => setStarting(true);
  useShortcuts({
    "/": ["search", () => search.current?.focus()],
    ...(canStart ? { n: ["start a run", start] } : {}),
  });
  const marked = list.rows.filter((one) => marks.has(one.id));
  hasMarked.current = marked.length > 0; // marked runs that are no longer on the page do not hold the list
  const showNew = () => {
    list.showNew();
    window.scrollTo(0, 0);
  };
  return html`<header><h1>Runs</h1>
      <div class="right"><${ScopedButton} caller=${caller} scope="submit" tone="main" onClick=${start}>Start a run<//></div>
    </header>
    <${Filters} query=${query} overview=${overview} search=${search} isFiltered=${isFiltered} />
    <${ProblemNote} problem=${list.problem} refresh=${list.restart} />
    ${list.newCount ? html`<div class="new-runs" role="status"><button class="main" onClick=${showNew}>${pluralize(list.newCount, "new run")}</button></div>` : null}
    ${marked.length ? html`<${BulkActions} runs=${marked} caller=${caller} unmark=${unmark} refresh=${list.refresh} />` : null}
    ${list.isLoaded || list.rows.length ? html`<${List} label="runs" rows=${list.rows} getKey=${(one) => one.id} onOpen=${(one) => navigate("runs", one.id)}
      shortcuts=${{ x: ["mark the row", (one) => mark([one.id], !marks.has(one.id))] }}
      getTone=${(one) => (one.isOutdated ? "gone" : undefined)}
      empty=${list.isSearching ? "Looking …" : isFiltered ? html`<${NoMatches} />` : html`<${NoRuns} start=${canStart ? start : null} />`}
      columns=${buildColumns({ marks, mark, rows: list.rows })} />` : html`<p class="faint">Loading …</p>`}
    <${ListFooter} list=${list} />
    ${isStarting ? html`<${StartDialog} workflow=${query.workflow} onClose=${() => setStarting(false)} />` : null}`;
}

// Filters

function Filters({ query, overview, search, isFiltered }) {
  const { data } = useGet("/v1/agents", {}, { live: false });
  const names = [...new Set([...(data?.items ?? []).map((one) => one.name), ...(query.workflow ? [query.workflow] : [])])].sort();
  const selectedStates = parseStates(query.state);
  return html`<div class="filters">
    <${SearchInput} value=${query.q ?? ""} inputRef=${search} />
    <div class="chips" role="group" aria-label="states">
      ${STATES.map((state) => html`<button key=${state} class="chip" aria-pressed=${selectedStates.includes(state) ? "true" : "false"} onClick=${() => updateQuery({ state: toggleState(query.state, state) })}>
        ${state}${overview ? html`<span class="count">${formatStateCount(overview.runs[state])}</span>` : null}
      </button>`)}
    </div>
    <div class="picks">
      <select aria-label="workflow or agent" value=${query.workflow ?? ""} onChange=${(event) => updateQuery({ workflow: event.target.value })}>
        <option value="">all workflows</option>
        ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
      <${TagInput} value=${query.tag ?? ""} />
      <select aria-label="created" value=${TIME_RANGES[query.since] ? query.since : ""} onChange=${(event) => updateQuery({ since: event.target.value })}>
        <option value="">whenever created</option>
        ${Object.entries(TIME_RANGES).map(([name, [label]]) => html`<option key=${name} value=${name}>${label}</option>`)}
      </select>
      ${query.parent ? html`<button class="chip" onClick=${() => updateQuery({ parent: "" })} aria-label="started by ${query.parent}: show others, too">started by ${query.parent} ✕</button>` : null}
      ${isFiltered ? html`<button class="plain" onClick=${() => updateQuery(NO_FILTER)}>Show all</button>` : null}
    </div>
  </div>`;
}

const formatStateCount = (stateCount) => (stateCount ? `${formatShortCount(stateCount.count)}${stateCount.has_more ? "+" : ""}` : "");

// The search starts when the typing pauses.
function SearchInput({ value, inputRef }) {
  const [typed, setTyped] = useState(value);
  const sentText = useRef(value);
  useEffect(() => {
    if (value !== sentText.current) {
      sentText.current = value; // changed from elsewhere: a link, or "show all"
      setTyped(value);
    }
  }, [value]);
  useEffect(() => {
    if (typed === sentText.current) return undefined;
    const timer = setTimeout(() => {
      sentText.current = typed;
      updateQuery({ q: typed });
    }, 250);
    return () => clearTimeout(timer);
  }, [typed]);
  const onKeyDown = (event) => {
    if (event.key !== "Escape") return;
    if (typed) setTyped("");
    else event.target.blur();
  };
  return html`<input class="search" type="search" ref=${inputRef} value=${typed} aria-label="search" placeholder="Search ids, workflows, tags and errors  ( / )"
    onInput=${(event) => setTyped(event.target.value)} onKeyDown=${onKeyDown} autocomplete="off" spellcheck=${false} />`;
}

function TagInput({ value }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  const apply = () => typed.trim() !== value && updateQuery({ tag: typed.trim() });
  return html`<input class="tag-filter" value=${typed} aria-label="tag" placeholder="tag" autocomplete="off" spellcheck=${false}
    onInput=${(event) => setTyped(event.target.value)} onBlur=${apply} onKeyDown=${(event) => event.key === "Enter" && apply()} />`;
}

// The list

function buildColumns({ marks, mark, rows }) {
  const all = rows.length > 0 && rows.every((one) => marks.has(one.id));
  const ids = rows.map((one) => one.id);
  return [
    { name: "Mark", header: html`<input type="checkbox" aria-label="mark all" checked=${all} onChange=${(event) => mark(ids, event.target.checked)} />`,
      render: (one) => html`<input type="checkbox" aria-label="mark ${one.id}" checked=${marks.has(one.id)} onChange=${(event) => mark([one.id], event.target.checked)} />` },
    { name: "Run", tone: "run", render: (one) => html`<a class="mono" href=${buildHref("runs", one.id)} title=${one.id}>${one.id}</a>` },
    { name: "Workflow", tone: "flow", render: (one) => html`<button class="plain link" title="show only its runs" onClick=${() => updateQuery({ workflow: one.workflow })}>${one.workflow}</button>` },
    { name: "State", render: (one) => html`<span><${StateBadge} state=${one.state} isPaused=${one.is_paused} isCancelling=${one.is_cancelling} /></span>` },
    { name: "What of it", tone: "wide", render: (one) => html`<${RunStatus} run=${one} />` },
    { name: "Created", tone: "when", render: (one) => html`<${RelativeTime} at=${one.created_at} />` },
    { name: "Took", tone: "number", render: (one) => html`<${RunDuration} run=${one} />` },
    { name: "Tokens", tone: "number", render: (one) => (one.usage ? html`<span title="${formatCount(one.usage.input_tokens)} in, ${formatCount(one.usage.output_tokens)} out">${formatShortCount(one.usage.input_tokens + one.usage.output_tokens)}</span>` : null) },
    { name: "Cost", tone: "number", render: (one) => html`<${Money} value=${one.usage?.usd} />` },
    { name: "Tags", tone: "tags", render: (one) => (one.tags.length ? html`<span>${one.tags.map((tag) => html`<button key=${tag} class="chip small" title="show only runs with this tag" onClick=${() => updateQuery({ tag })}>${tag}</button>`)}</span>` : null) },
  ];
}

function RunStatus({ run }) {
  const status = describeStatus(run);
  return status ? html`<span class="why ${status.tone}" title=${status.fullText}>${status.text}</span>` : null;
}

function RunDuration({ run }) {
  const now = useNow();
  const end = run.finished_at ? Date.parse(run.finished_at) : now;
  const text = formatDuration((end - Date.parse(run.created_at)) / 1000);
  return run.finished_at ? text : html`<span class="faint" title="since it was created">${text}</span>`;
}

// How far back the list goes, and a button for older runs.
function ListFooter({ list }) {
  const { isSearching, isLoaded, searchedUntil, next, rows } = list;
  if (isSearching && searchedUntil) {
    return html`<p class="further" role="status">Looked back to ${formatTime(searchedUntil)}; ${pluralize(rows.length, "run")} found so far. <button onClick=${list.stopSearch}>Stop</button></p>`;
  }
  if (!isLoaded || !next) return rows.length > 10 ? html`<p class="further faint">That is all.</p>` : null;
  return html`<p class="further">
    ${searchedUntil ? html`<span>Looked back to ${formatTime(searchedUntil)}. </span>` : null}
    <button disabled=${isSearching} onClick=${list.loadOlder}>${searchedUntil ? "Look further back" : "Older runs"}</button>
  </p>`;
}

const NoMatches = () => html`<p><strong>No run matches.</strong></p>
  <p>Text is looked for in ids, names of workflows, tags and errors, in upper or lower case. <button class="plain link" onClick=${() => updateQuery(NO_FILTER)}>Show all runs</button></p>`;

const EXAMPLE_CODE = `import asyncio
from holdfast import step, workflow

@step(retries=3)
async def fetch(customer: str) -> list[int]:
    return [1, 2, 3]  # call an API, a model, a database

@workflow(id="report-{customer}")
async def report(customer: str) -> int:
    return sum(await fetch(customer))

asyncio.run(report("acme"))`;

const NoRuns = ({ start }) => html`<p><strong>There are no runs yet.</strong> Whatever is run on this server's store appears here by itself, as it happens. For a first one, run this with <code>HOLDFAST_URL</code> set to the store:</p>
  <pre class="value" tabindex="0" role="region" aria-label="a first run">${EXAMPLE_CODE}</pre>
  <p>${start ? html`Or start one of a workflow that a worker serves: <button class="plain link" onClick=${start}>start a run</button>. ` : null}<code>holdfast demo</code> shows an agent that survives its worker.</p>`;

// Actions on several runs

const BULK_ACTIONS = {
  pause: { label: "Pause", isApplicable: (run) => !run.finished_at && !run.is_paused, text: "Steps in flight may end; nothing new begins until they are resumed." },
  resume: { label: "Resume", isApplicable: (run) => run.is_paused && !run.finished_at, text: "They go on from where they were paused." },
  cancel: { label: "Cancel", tone: "danger", isApplicable: (run) => !run.finished_at, text: "What they are doing is interrupted, and steps with a compensation are undone." },
  retry: { label: "Retry", isApplicable: (run) => ["failed", "cancelled", "dead"].includes(run.state), body: {}, text: "They go on from where they went wrong; what was recorded before that is not done again." },
};
const MAX_CONCURRENT = 6;

function BulkActions({ runs, caller, unmark, refresh }) {
  const [pendingAction, setPendingAction] = useState(null);
  const prepare = (name) => setPendingAction({ name, runs: runs.filter(BULK_ACTIONS[name].isApplicable), otherCount: runs.filter((one) => !BULK_ACTIONS[name].isApplicable(one)).length });
  return html`<div class="bulk" role="region" aria-label="marked runs">
    <strong>${pluralize(runs.length, "run")} marked</strong>
    ${Object.entries(BULK_ACTIONS).map(([name, one]) => html`<${ScopedButton} key=${name} caller=${caller} scope="operate" tone=${one.tone ?? ""} disabled=${!runs.some(one.isApplicable)} onClick=${() => prepare(name)}>${one.label}<//>`)}
    <button class="plain" onClick=${unmark}>Unmark</button>
    ${describeMissingScope(caller, "operate") ? html`<span class="faint">${describeMissingScope(caller, "operate")}</span>` : null}
    ${pendingAction ? html`<${BulkDialog} ...${pendingAction} unmark=${unmark} refresh=${refresh} onClose=${() => setPendingAction(null)} />` : null}
  </div>`;
}

function BulkDialog({ name, runs, otherCount, unmark, refresh, onClose }) {
  const close = useClose(onClose);
  const { label, text, tone, body } = BULK_ACTIONS[name];
  const [doneCount, setDoneCount] = useState(0);
  const action = async () => {
    const rest = [...runs];
    const problems = [];
    const runNext = async () => {
      for (let one = rest.shift(); one; one = rest.shift()) {
        try {
          await post(`/v1/runs/${encodePart(one.id)}/${name}`, body);
        } catch (problem) {
          problems.push(`${one.id}: ${problem.message}`);
        }
        setDoneCount((before) => before + 1);
      }
    };
    await Promise.all(Array.from({ length: MAX_CONCURRENT }, runNext));
    close();
    refresh();
    if (runs.length > problems.length) showToast(`${label}: ${pluralize(runs.length - problems.length, "run")}.`, "good");
    if (problems.length) showToast(`${pluralize(problems.length, "run")} refused it. ${problems[0]}`, "bad");
    else unmark();
  };
  return html`<${Dialog} title="${label} ${pluralize(runs.length, "run")}?" onClose=${onClose}>
    <p>${text}</p>
    ${otherCount ? html`<p class="faint">${pluralize(otherCount, "marked run")} cannot be: ${otherCount === 1 ? "it is" : "they are"} left alone.</p>` : null}
    ${doneCount ? html`<p role="status">${doneCount} of ${runs.length} …</p>` : null}
    <div class="does"><button onClick=${onClose}>Leave it</button><${ActionButton} tone=${tone || "main"} action=${action}>${label} ${pluralize(runs.length, "run")}<//></div>
  <//>`;
}
