// The inbox: what runs ask people, the longest open first.

import { html, useEffect, useRef, useState } from "../html.js";
import { get, part } from "../api.js";
import { useGet, useLoaded } from "../data.js";
import { plural } from "../format.js";
import { useKeys } from "../shortcuts.js";
import { Ago, Empty, List, ProblemNote, useChosen } from "../components.js";
import { outcomeOf, Question } from "../approval.js";
import { href, refine } from "../router.js";
import { ScopeNote } from "../scopes.js";

const MOST = 200;

export function ApprovalsPage({ query, who }) {
  const closed = query.tab === "closed";
  const where = { workflow: query.workflow, assignee: query.assignee };
  return html`<header>
      <h1>Approvals</h1>
      <div class="right">
        <label class="line">asked of <input class="narrow" value=${query.assignee ?? ""} placeholder="anybody" onChange=${(event) => refine({ assignee: event.target.value.trim() })} /></label>
      </div>
    </header>
    <nav class="tabs" aria-label="which questions">
      <a href=${href("approvals", "", { ...where })} aria-current=${closed ? undefined : "page"}>Open</a>
      <a href=${href("approvals", "", { ...where, tab: "closed" })} aria-current=${closed ? "page" : undefined}>Closed</a>
    </nav>
    ${query.workflow ? html`<p>Only those of <strong>${query.workflow}</strong>. <a href=${href("approvals", "", { ...query, workflow: "" })}>Show all</a></p>` : null}
    ${closed ? html`<${Closed} where=${where} open=${query.id} who=${who} />` : html`<${Open} where=${where} first=${query.id} who=${who} />`}`;
}

function Open({ where, first, who }) {
  const { data, problem, loading, again } = useGet("/v1/approvals", { ...where, limit: MOST });
  const [opened, setOpened] = useState(() => new Set(first ? [first] : []));
  const [wish, setWish] = useState({ id: "", word: "", number: 0 });
  const place = useRef(null);
  const rows = useWithGone(data?.items ?? [], opened);
  const { at, choose, move, current } = useChosen(rows, place);
  const toggle = (id, open) =>
    setOpened((before) => {
      const after = new Set(before);
      if (open ?? !after.has(id)) after.add(id);
      else after.delete(id);
      return after;
    });
  const wishFor = (word) => {
    const one = current();
    if (!one) return;
    toggle(one.id, true);
    setWish({ id: one.id, word, number: Date.now() });
  };
  useKeys({
    j: ["next question", () => move(1)],
    k: ["question before", () => move(-1)],
    Enter: ["open or fold the question", () => current() && toggle(current().id)],
    a: ["approve: go to the answer", () => wishFor("approve")],
    d: ["deny: go to the button", () => wishFor("deny")],
  });
  const answered = (id) => {
    toggle(id, false);
    document.getElementById("page")?.focus({ preventScroll: true });
    again();
  };
  if (!rows.length) {
    if (problem) return html`<${ProblemNote} problem=${problem} again=${again} />`;
    return loading ? null : html`<${Empty}>
      <p>No question waits for an answer.</p>
      <p>A run asks people with <code>await ask("Deploy?")</code>, and an agent's tool with <code>@tool(requires_approval=True)</code>. It then waits here, for a second or a month, and needs no process meanwhile.</p>
    <//>`;
  }
  return html`<${ProblemNote} problem=${problem} again=${again} />
    <${ScopeNote} who=${who} scope="operate" what="You can read the questions, but not answer them." />
    <p class="faint">${rows.length >= MOST ? `The ${MOST} that have been open longest.` : plural(rows.length, "question")} <span class="of-keyboard"><kbd>j</kbd> <kbd>k</kbd> to move, <kbd>Enter</kbd> opens, <kbd>a</kbd> and <kbd>d</kbd> go to approve and deny.</span></p>
    <ol class="questions" ref=${place}>
      ${rows.map((one, index) => {
        const isOpened = opened.has(one.id);
        return html`<li key=${one.id} class="panel ${index === at ? "chosen" : ""}" data-id=${one.id}>
          <button type="button" class="plain head" aria-expanded=${isOpened} onClick=${() => { choose(index); toggle(one.id); }}>
            <span class="asked">${one.question}</span>
            <span class="faint">${one.workflow} · <${Ago} at=${one.requested_at} />${one.assignee ? ` · of ${one.assignee}` : ""}</span>
          </button>
          ${isOpened ? html`<${Question} approval=${one} who=${who} heading=${false} wish=${wish.id === one.id ? wish : null} onAnswered=${answered} />` : null}
        </li>`;
      })}
    </ol>`;
}

// The questions, and those that somebody has open here although they are answered by now: they stay until they are folded.
function useWithGone(items, opened) {
  const known = new Map(items.map((one) => [one.id, one]));
  const gone = [...opened].filter((id) => !known.has(id));
  const { data } = useLoaded((signal) => Promise.all(gone.map((id) => get(`/v1/approvals/${part(id)}`, {}, signal).catch(() => null))), [gone]);
  const last = useRef(new Map());
  for (const one of items) last.current.set(one.id, one);
  for (const one of data ?? []) if (one) last.current.set(one.id, one);
  const rows = [...items, ...gone.map((id) => last.current.get(id)).filter(Boolean)];
  return rows.sort((a, b) => Date.parse(a.requested_at) - Date.parse(b.requested_at));
}

function Closed({ where, open, who }) {
  const { data, problem, loading, again } = useGet("/v1/approvals", { ...where, only_closed: true, limit: MOST });
  const [shown, setShown] = useState(open ?? "");
  const one = data?.items.find((other) => other.id === shown);
  useEffect(() => {
    if (one) document.getElementById("shown")?.scrollIntoView({ block: "nearest" });
  }, [shown]);
  if (!data) return loading ? null : html`<${ProblemNote} problem=${problem} again=${again} />`;
  return html`<${ProblemNote} problem=${problem} again=${again} />
    ${one ? html`<section id="shown" class="panel" aria-label="question"><${Question} approval=${one} who=${who} /><button onClick=${() => setShown("")}>Fold</button></section>` : null}
    <${List} label="closed questions" rows=${data.items} keyOf=${(row) => row.id} open=${(row) => setShown(row.id)}
      empty="Nothing has been answered yet. What was, stands here: who said what, when and why."
      columns=${[
        { name: "Question", tone: "wide", of: (row) => html`<button class="plain link" onClick=${() => setShown(row.id)}>${row.question}</button>` },
        { name: "Answer", of: outcomeOf },
        { name: "By", tone: "wide", of: (row) => row.answered_by },
        { name: "Reason", tone: "wide", of: (row) => row.answer?.reason ?? "" },
        { name: "When", of: (row) => html`<${Ago} at=${row.answered_at ?? row.requested_at} />` },
        { name: "Run", tone: "wide", of: (row) => html`<a href=${href("runs", row.run_id)}>${row.run_id}</a>` },
      ]} />`;
}
