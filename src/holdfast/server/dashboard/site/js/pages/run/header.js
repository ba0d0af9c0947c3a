// The header of a run's page: its state, its usage, what happened, and what to do next.

import { html } from "../../html.js";
import { encodePart, post } from "../../api.js";
import { ActionButton, Badge, RelativeTime, StateBadge } from "../../components.js";
import { useNow } from "../../data.js";
import { formatDuration, formatTime } from "../../format.js";
import { buildHref } from "../../router.js";
import { findObstacles } from "./permissions.js";
import { formatWorkerName, indexWorkers, isEnded } from "./rows.js";
import { formatBudgetLeft, UsageText } from "./usage.js";
import { CodeText, CopyButton } from "./values.js";

export function RunHeader({ report, caller, openDialog }) {
  return html`<header class="run-head">
      <nav class="crumbs" aria-label="where it stands">
        <a href=${buildHref("runs", "", { workflow: report.workflow })}>${report.workflow}</a>${report.version ? html` <span class="faint">${report.version}</span>` : null}
        ${report.parent ? html` · <span class="faint">started by</span> <a href=${buildHref("runs", report.parent)}>${report.parent}</a>` : null}
        ${report.forked_from ? html` · <span class="faint">forked from</span> <a href=${buildHref("runs", report.forked_from)}>${report.forked_from}</a>` : null}
      </nav>
      <h1>${report.id}<${CopyButton} value=${report.id} label="the id" /></h1>
      <span class="states"><${StateBadge} state=${report.state} isPaused=${report.is_paused} isCancelling=${report.is_cancelling} />
      ${report.is_disabled ? html` <${Badge} tone="bad">disabled<//>` : null}</span>
      <${RunActions} report=${report} caller=${caller} openDialog=${openDialog} />
    </header>
    <${RunFacts} report=${report} />
    <p class="run-summary">${report.summary}</p>
    <${AdviceList} report=${report} caller=${caller} openDialog=${openDialog} />`;
}

function RunFacts({ report }) {
  const now = useNow();
  const workers = indexWorkers(report);
  const hasEnded = isEnded(report.state);
  const seconds = hasEnded ? report.duration_s : Math.max(0, (now - Date.parse(report.created_at)) / 1000);
  const worker = workers.get(report.claimed_by);
  return html`<dl class="run-facts">
    <div><dt>Started</dt><dd><${RelativeTime} at=${report.created_at} /></dd></div>
    <div><dt>${hasEnded ? "Took" : "So far"}</dt><dd title=${hasEnded ? formatTime(report.finished_at) : undefined}>${formatDuration(seconds)}</dd></div>
    ${report.claimed_by && !hasEnded
      ? html`<div><dt>Held by</dt><dd>${formatWorkerName(report.claimed_by, workers)} <${Badge} tone=${worker?.is_alive ? "good" : "bad"}>${worker?.is_alive ? "alive" : "dead"}<//></dd></div>`
      : null}
    ${report.state === "waiting" && report.waits_for ? html`<div><dt>Waits for</dt><dd>${report.waits_for}${report.wake_at ? html` (<${RelativeTime} at=${report.wake_at} />)` : null}</dd></div>` : null}
    ${report.usage ? html`<div><dt>Used</dt><dd><${UsageText} usage=${report.usage} /></dd></div>` : null}
    ${report.budget ? html`<div><dt>Budget left</dt><dd>${formatBudgetLeft(report.budget, report.budget_remaining).join(", ")}</dd></div>` : null}
    <div><dt>Queue</dt><dd><a href=${buildHref("queues")}>${report.queue}</a>${report.queue_key ? ` (${report.queue_key})` : ""}</dd></div>
    ${report.deadline ? html`<div><dt>Deadline</dt><dd><${RelativeTime} at=${report.deadline} /></dd></div>` : null}
    ${report.tags.length ? html`<div><dt>Tags</dt><dd>${report.tags.map((tag) => html`<a key=${tag} class="tag" href=${buildHref("runs", "", { tag })}>${tag}</a> `)}</dd></div>` : null}
  </dl>`;
}

const ResumeButton = ({ report, obstacles }) => html`<${ActionButton} tone="main" disabled=${Boolean(obstacles.resume)} title=${obstacles.resume || undefined} action=${() => post(`/v1/runs/${encodePart(report.id)}/resume`)} done="It goes on.">Resume<//>`;

const ACTION_LABELS = { cancel: "Cancel", retry: "Retry", fork: "Fork", signal: "Signal", budget: "Budget" };

function RunActions({ report, caller, openDialog }) {
  const obstacles = findObstacles(report, caller);
  const hasEnded = isEnded(report.state);
  const renderButton = (name, tone = "") => html`<button key=${name} class=${tone} disabled=${Boolean(obstacles[name])} title=${obstacles[name] || undefined} onClick=${() => openDialog(name)}>${ACTION_LABELS[name]}</button>`;
  return html`<div class="right" role="group" aria-label="what can be done">
    ${hasEnded
      ? renderButton("retry", report.retry?.is_possible ? "main" : "")
      : report.is_paused
        ? html`<${ResumeButton} key="resume" report=${report} obstacles=${obstacles} />`
        : html`<${ActionButton} key="pause" disabled=${Boolean(obstacles.pause)} title=${obstacles.pause || undefined} action=${() => post(`/v1/runs/${encodePart(report.id)}/pause`)} done="Paused: steps in flight may end.">Pause<//>`}
    ${renderButton("fork")}${renderButton("signal")}${renderButton("budget")}${renderButton("cancel", "danger")}
  </div>`;
}

// What to do next, each with a button that does it.
function AdviceList({ report, caller, openDialog }) {
  if (!report.advice.length) return null;
  return html`<ul class="advice" aria-label="what to do now">
    ${report.advice.map((one, index) => html`<li key=${index} class="note ${index ? "" : "warn"}">
      <span><${CodeText}>${one.text.charAt(0).toUpperCase() + one.text.slice(1)}<//></span>
      <${AdviceAction} action=${one.action} report=${report} caller=${caller} openDialog=${openDialog} />
    </li>`)}
  </ul>`;
}

function AdviceAction({ action, report, caller, openDialog }) {
  const obstacles = findObstacles(report, caller);
  const renderButton = (name, label, onClick, tone = "main") => html`<button class=${tone} disabled=${Boolean(obstacles[name])} title=${obstacles[name] || undefined} onClick=${onClick}>${label}</button>`;
  switch (action) {
    case "retry":
      return renderButton("retry", "Retry", () => openDialog("retry"));
    case "run_again":
      return renderButton("retry", "Retry …", () => openDialog("retry"));
    case "settle": {
      const unknown = report.journal.findLast((one) => one.has_unknown_outcome);
      return unknown ? renderButton("settle", "Settle it", () => openDialog("settle", unknown)) : null;
    }
    case "resume":
      return html`<${ResumeButton} report=${report} obstacles=${obstacles} />`;
    case "approve":
      return renderButton("approve", "Answer", () => openDialog("approve"));
    case "budget":
      return renderButton("budget", "Give it more", () => openDialog("budget"));
    case "fork":
      return renderButton("fork", "Fork", () => openDialog("fork"), "");
    case "enable":
      return html`<${ActionButton} tone="main" disabled=${Boolean(obstacles.enable)} title=${obstacles.enable || undefined} action=${() => post(`/v1/agents/${encodePart(report.workflow)}/enable`)} done="${report.workflow} is enabled.">Enable<//>`;
    case "worker":
      return html`<a class="button" href=${buildHref("workers")}>Workers</a>`;
    default:
      return null;
  }
}
