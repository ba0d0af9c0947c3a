// The head of a run's page: what it is, how it is, what it cost, what happened, and what to do now.

import { html } from "../../html.js";
import { part, post } from "../../api.js";
import { clock, duration } from "../../format.js";
import { useNow } from "../../data.js";
import { Act, Ago, Badge, State } from "../../components.js";
import { href } from "../../router.js";
import { isEnded, nameOf, workersOf } from "./rows.js";
import { may } from "./permissions.js";
import { leftOf, Spent } from "./usage.js";
import { Copy, Words } from "./values.js";

export function Head({ story, who, open }) {
  return html`<header class="run-head">
      <nav class="crumbs" aria-label="where it stands">
        <a href=${href("runs", "", { workflow: story.workflow })}>${story.workflow}</a>${story.version ? html` <span class="faint">${story.version}</span>` : null}
        ${story.parent ? html` · <span class="faint">started by</span> <a href=${href("runs", story.parent)}>${story.parent}</a>` : null}
        ${story.forked_from ? html` · <span class="faint">forked from</span> <a href=${href("runs", story.forked_from)}>${story.forked_from}</a>` : null}
      </nav>
      <h1>${story.id}<${Copy} of=${story.id} label="the id" /></h1>
      <span class="states"><${State} state=${story.state} paused=${story.is_paused} cancelling=${story.is_cancelling} />
      ${story.is_disabled ? html` <${Badge} tone="bad">disabled<//>` : null}</span>
      <${Buttons} story=${story} who=${who} open=${open} />
    </header>
    <${Facts} story=${story} />
    <p class="run-told">${story.summary}</p>
    <${AdviceList} story=${story} who=${who} open=${open} />`;
}

function Facts({ story }) {
  const now = useNow();
  const workers = workersOf(story);
  const over = isEnded(story.state);
  const seconds = over ? story.duration_s : Math.max(0, (now - Date.parse(story.created_at)) / 1000);
  const holder = workers.get(story.claimed_by);
  return html`<dl class="run-facts">
    <div><dt>Started</dt><dd><${Ago} at=${story.created_at} /></dd></div>
    <div><dt>${over ? "Took" : "So far"}</dt><dd title=${over ? clock(story.finished_at) : undefined}>${duration(seconds)}</dd></div>
    ${story.claimed_by && !over
      ? html`<div><dt>Held by</dt><dd>${nameOf(story.claimed_by, workers)} <${Badge} tone=${holder?.is_alive ? "good" : "bad"}>${holder?.is_alive ? "alive" : "dead"}<//></dd></div>`
      : null}
    ${story.state === "waiting" && story.waits_for ? html`<div><dt>Waits for</dt><dd>${story.waits_for}${story.wake_at ? html` (<${Ago} at=${story.wake_at} />)` : null}</dd></div>` : null}
    ${story.usage ? html`<div><dt>Used</dt><dd><${Spent} usage=${story.usage} /></dd></div>` : null}
    ${story.budget ? html`<div><dt>Budget left</dt><dd>${leftOf(story.budget, story.budget_remaining).join(", ")}</dd></div>` : null}
    <div><dt>Queue</dt><dd><a href=${href("queues")}>${story.queue}</a>${story.queue_key ? ` (${story.queue_key})` : ""}</dd></div>
    ${story.deadline ? html`<div><dt>Deadline</dt><dd><${Ago} at=${story.deadline} /></dd></div>` : null}
    ${story.tags.length ? html`<div><dt>Tags</dt><dd>${story.tags.map((tag) => html`<a key=${tag} class="tag" href=${href("runs", "", { tag })}>${tag}</a> `)}</dd></div>` : null}
  </dl>`;
}

const Resume = ({ story, can }) => html`<${Act} tone="main" disabled=${Boolean(can.resume)} title=${can.resume || undefined} act=${() => post(`/v1/runs/${part(story.id)}/resume`)} done="It goes on.">Resume<//>`;

const WORDS = { cancel: "Cancel", retry: "Retry", fork: "Fork", signal: "Signal", budget: "Budget" };

function Buttons({ story, who, open }) {
  const can = may(story, who);
  const over = isEnded(story.state);
  const ask = (name, tone = "") => html`<button key=${name} class=${tone} disabled=${Boolean(can[name])} title=${can[name] || undefined} onClick=${() => open(name)}>${WORDS[name]}</button>`;
  return html`<div class="right" role="group" aria-label="what can be done">
    ${over
      ? ask("retry", story.retry?.is_possible ? "main" : "")
      : story.is_paused
        ? html`<${Resume} key="resume" story=${story} can=${can} />`
        : html`<${Act} key="pause" disabled=${Boolean(can.pause)} title=${can.pause || undefined} act=${() => post(`/v1/runs/${part(story.id)}/pause`)} done="Paused: steps in flight may end.">Pause<//>`}
    ${ask("fork")}${ask("signal")}${ask("budget")}${ask("cancel", "danger")}
  </div>`;
}

// What to do now, each with what does it.
function AdviceList({ story, who, open }) {
  if (!story.advice.length) return null;
  return html`<ul class="advice" aria-label="what to do now">
    ${story.advice.map((one, index) => html`<li key=${index} class="note ${index ? "" : "warn"}">
      <span><${Words}>${one.text.charAt(0).toUpperCase() + one.text.slice(1)}<//></span>
      <${Does} does=${one.action} story=${story} who=${who} open=${open} />
    </li>`)}
  </ul>`;
}

function Does({ does, story, who, open }) {
  const can = may(story, who);
  const button = (act, words, click, tone = "main") => html`<button class=${tone} disabled=${Boolean(can[act])} title=${can[act] || undefined} onClick=${click}>${words}</button>`;
  switch (does) {
    case "retry":
      return button("retry", "Retry", () => open("retry"));
    case "run_again":
      return button("retry", "Retry …", () => open("retry"));
    case "settle": {
      const unknown = story.journal.findLast((one) => one.has_unknown_outcome);
      return unknown ? button("settle", "Settle it", () => open("settle", unknown)) : null;
    }
    case "resume":
      return html`<${Resume} story=${story} can=${can} />`;
    case "approve":
      return button("approve", "Answer", () => open("approve"));
    case "budget":
      return button("budget", "Give it more", () => open("budget"));
    case "fork":
      return button("fork", "Fork", () => open("fork"), "");
    case "enable":
      return html`<${Act} tone="main" disabled=${Boolean(can.enable)} title=${can.enable || undefined} act=${() => post(`/v1/agents/${part(story.workflow)}/enable`)} done="${story.workflow} is enabled.">Enable<//>`;
    case "worker":
      return html`<a class="button" href=${href("workers")}>Workers</a>`;
    default:
      return null;
  }
}
