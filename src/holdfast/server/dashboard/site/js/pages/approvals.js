// The inbox: all approvals, the longest open first.

import { html, useEffect, useRef, useState } from "../html.js";
import { encodePart, get } from "../api.js";
import { ApprovalPanel, renderOutcome } from "../approval.js";
import { EmptyState, List, ProblemNote, RelativeTime, useCurrentRow } from "../components.js";
import { useGet, useLoader } from "../data.js";
import { pluralize } from "../format.js";
import { buildHref, updateQuery } from "../router.js";
import { ScopeNote } from "../scopes.js";
import { useShortcuts } from "../shortcuts.js";

const MAX_ITEMS = 200;

export function ApprovalsPage({ query, caller }) {
  const isClosedTab = query.tab === "closed";
  const filter = { workflow: query.workflow, assignee: query.assignee };
  return html`<header>
      <h1>Approvals</h1>
      <div class="right">
        <label class="line">asked of <input class="narrow" value=${query.assignee ?? ""} placeholder="anybody" onChange=${(event) => updateQuery({ assignee: event.target.value.trim() })} /></label>
      </div>
    </header>
    <nav class="tabs" aria-label="which questions">
      <a href=${buildHref("approvals", "", { ...filter })} aria-current=${isClosedTab ? undefined : "page"}>Open</a>
      <a href=${buildHref("approvals", "", { ...filter, tab: "closed" })} aria-current=${isClosedTab ? "page" : undefined}>Closed</a>
    </nav>
    ${query.workflow ? html`<p>Only those of <strong>${query.workflow}</strong>. <a href=${buildHref("approvals", "", { ...query, workflow: "" })}>Show all</a></p>` : null}
    ${isClosedTab ? html`<${ClosedApprovals} filter=${filter} openedId=${query.id} caller=${caller} />` : html`<${OpenApprovals} filter=${filter} openedId=${query.id} caller=${caller} />`}`;
}

function OpenApprovals({ filter, openedId, caller }) {
  const { data, problem, loading, refresh } = useGet("/v1/approvals", { ...filter, limit: MAX_ITEMS });
  const [opened, setOpened] = useState(() => new Set(openedId ? [openedId] : []));
  const [focusRequest, setFocusRequest] = useState({ id: "", verb: "", number: 0 });
  const element = useRef(null);
  const rows = useOpenedApprovals(data?.items ?? [], opened);
  const { at, choose, move, current } = useCurrentRow(rows, element);
  const toggle = (id, open) =>
    setOpened((before) => {
      const after = new Set(before);
      if (open ?? !after.has(id)) after.add(id);
      else after.delete(id);
      return after;
    });
  const requestFocus = (verb) => {
    const one = current();
    if (!one) return;
    toggle(one.id, true);
    setFocusRequest({ id: one.id, verb, number: Date.now() });
  };
  useShortcuts({
    j: ["next question", () => move(1)],
    k: ["question before", () => move(-1)],
    Enter: ["open or fold the question", () => current() && toggle(current().id)],
    a: ["approve: go to the answer", () => requestFocus("approve")],
    d: ["deny: go to the button", () => requestFocus("deny")],
  });
  const onAnswered = (id) => {
    toggle(id, false);
    document.getElementById("page")?.focus({ preventScroll: true });
    refresh();
  };
  if (!rows.length) {
    if (problem) return html`<${ProblemNote} problem=${problem} refresh=${refresh} />`;
    return loading ? null : html`<${EmptyState}>
      <p>No question waits for an answer.</p>
      <p>A run asks people with <code>await ask("Deploy?")</code>, and an agent's tool with <code>@tool(requires_approval=True)</code>. It then waits here, for a second or a month, and needs no process meanwhile.</p>
    <//>`;
  }
  return html`<${ProblemNote} problem=${problem} refresh=${refresh} />
    <${ScopeNote} caller=${caller} scope="operate" hint="You can read the questions, but not answer them." />
    <p class="faint">${rows.length >= MAX_ITEMS ? `The ${MAX_ITEMS} that have been open longest.` : pluralize(rows.length, "question")} <span class="of-keyboard"><kbd>j</kbd> <kbd>k</kbd> to move, <kbd>Enter</kbd> opens, <kbd>a</kbd> and <kbd>d</kbd> go to approve and deny.</span></p>
    <ol class="questions" ref=${element}>
      ${rows.map((one, index) => {
        const isOpened = opened.has(one.id);
        return html`<li key=${one.id} class="panel ${index === at ? "chosen" : ""}" data-id=${one.id}>
          <button type="button" class="plain head" aria-expanded=${isOpened} onClick=${() => { choose(index); toggle(one.id); }}>
            <span class="asked">${one.question}</span>
            <span class="faint">${one.workflow} · <${RelativeTime} at=${one.requested_at} />${one.assignee ? ` · of ${one.assignee}` : ""}</span>
          </button>
          ${isOpened ? html`<${ApprovalPanel} approval=${one} caller=${caller} heading=${false} focusRequest=${focusRequest.id === one.id ? focusRequest : null} onAnswered=${onAnswered} />` : null}
        </li>`;
      })}
    </ol>`;
}

// The open approvals, and those expanded here that were answered since: they stay until they are collapsed.
function useOpenedApprovals(items, opened) {
  const known = new Map(items.map((one) => [one.id, one]));
  const closedIds = [...opened].filter((id) => !known.has(id));
  const { data } = useLoader((signal) => Promise.all(closedIds.map((id) => get(`/v1/approvals/${encodePart(id)}`, {}, signal).catch(() => null))), [closedIds]);
  const latest = useRef(new Map());
  for (const one of items) latest.current.set(one.id, one);
  for (const one of data ?? []) if (one) latest.current.set(one.id, one);
  const rows = [...items, ...closedIds.map((id) => latest.current.get(id)).filter(Boolean)];
  return rows.sort((a, b) => Date.parse(a.requested_at) - Date.parse(b.requested_at));
}

function ClosedApprovals({ filter, openedId, caller }) {
  const { data, problem, loading, refresh } = useGet("/v1/approvals", { ...filter, only_closed: true, limit: MAX_ITEMS });
  const [shownId, setShownId] = useState(openedId ?? "");
  const one = data?.items.find((other) => other.id === shownId);
  useEffect(() => {
    if (one) document.getElementById("shown")?.scrollIntoView({ block: "nearest" });
  }, [shownId]);
  if (!data) return loading ? null : html`<${ProblemNote} problem=${problem} refresh=${refresh} />`;
  return html`<${ProblemNote} problem=${problem} refresh=${refresh} />
    ${one ? html`<section id="shown" class="panel" aria-label="question"><${ApprovalPanel} approval=${one} caller=${caller} /><button onClick=${() => setShownId("")}>Fold</button></section>` : null}
    <${List} label="closed questions" rows=${data.items} getKey=${(row) => row.id} onOpen=${(row) => setShownId(row.id)}
      empty="Nothing has been answered yet. What was, stands here: who said what, when and why."
      columns=${[
        { name: "Question", tone: "wide", render: (row) => html`<button class="plain link" onClick=${() => setShownId(row.id)}>${row.question}</button>` },
        { name: "Answer", render: renderOutcome },
        { name: "By", tone: "wide", render: (row) => row.answered_by },
        { name: "Reason", tone: "wide", render: (row) => row.answer?.reason ?? "" },
        { name: "When", render: (row) => html`<${RelativeTime} at=${row.answered_at ?? row.requested_at} />` },
        { name: "Run", tone: "wide", render: (row) => html`<a href=${buildHref("runs", row.run_id)}>${row.run_id}</a>` },
      ]} />`;
}
