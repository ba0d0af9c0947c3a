// The details of one step: its arguments, outcome, and cost, and what can be done from here.

import { html, useEffect, useRef, useState } from "../../html.js";
import { encodePart, get } from "../../api.js";
import { Badge, ProblemNote, Value } from "../../components.js";
import { describeCutOff, formatBytes, formatCount, formatDuration, formatTime, pluralize } from "../../format.js";
import { buildHref } from "../../router.js";
import { findObstacles, isForkable } from "./permissions.js";
import { countReplays, formatRowTitle, formatWorkerName, getStepNumber, indexWorkers, isSettled } from "./rows.js";
import { formatCost } from "./usage.js";
import { Collapsible, CopyButton, ErrorDetails, NamedValue } from "./values.js";

export function StepDetail({ row, caller, openDialog, onClose }) {
  const element = useRef(null);
  useEffect(() => {
    // On a phone, it is below the rows, and would open out of sight.
    if (matchMedia("(max-width: 1000px)").matches) element.current.scrollIntoView({ block: "nearest" });
  }, []);
  const title = formatRowTitle(row);
  return html`<aside class="detail panel" ref=${element} aria-label="step ${getStepNumber(row) || ""} ${title}">
    <header>
      <h2>${getStepNumber(row) ? html`<span class="faint">#${getStepNumber(row)}</span> ` : null}${title}</h2>
      <button type="button" class="plain" aria-label="close the step" onClick=${onClose}>✕</button>
    </header>
    ${row.record
      ? html`<${RecordDetail} key=${row.record.recorded_at} record=${row.record} report=${row.report} caller=${caller} openDialog=${openDialog} />`
      : row.attempt
        ? html`<${AttemptDetail} row=${row} />`
        : row.child
          ? html`<p><${Badge} tone="calm">${row.child.state}<//> <a href=${buildHref("runs", row.child.id)}>${row.child.id}</a></p>`
          : html`<p>Since ${formatTime(row.begin)}. A run that waits needs no worker meanwhile.</p>`}
  </aside>`;
}

function AttemptDetail({ row }) {
  const { attempt, report } = row;
  const workers = indexWorkers(report);
  return html`<dl class="run-facts small">
      <div><dt>Begun</dt><dd>${formatTime(attempt.updated_at)}</dd></div>
      <div><dt>So far</dt><dd>${formatDuration((row.end - row.begin) / 1000)}</dd></div>
      <div><dt>Attempt</dt><dd>${attempt.attempt}</dd></div>
      ${attempt.retry_at ? html`<div><dt>Next attempt</dt><dd>${formatTime(attempt.retry_at)}</dd></div>` : null}
      ${report.claimed_by ? html`<div><dt>By</dt><dd>${formatWorkerName(report.claimed_by, workers)}</dd></div>` : null}
      ${attempt.is_once ? html`<div><dt>Once</dt><dd>it must not happen twice</dd></div>` : null}
    </dl>
    ${attempt.arguments ? html`<${NamedValue} name="Arguments" value=${attempt.arguments} />` : null}
    ${attempt.error ? html`<${NamedValue} name="Why the attempt before failed" value=${attempt.error} />` : null}
    ${attempt.progress !== null && attempt.progress !== undefined ? html`<${NamedValue} name="Progress" value=${attempt.progress} />` : null}`;
}

function RecordDetail({ record, report, caller, openDialog }) {
  const [fullRecord, setFullRecord] = useState(null);
  const [problem, setProblem] = useState(null);
  const workers = indexWorkers(report);
  const shownRecord = fullRecord ?? record;
  const obstacles = findObstacles(report, caller);
  const replayCount = countReplays(report, record);
  const readFullRecord = () => get(`/v1/runs/${encodePart(report.id)}/records/${record.seq}`).then(setFullRecord, setProblem);
  const call = shownRecord.model_call;
  return html`<dl class="run-facts small">
      <div><dt>Outcome</dt><dd>${record.has_unknown_outcome ? html`<${Badge} tone="bad">nobody knows<//>` : record.ok ? html`<${Badge} tone="good">ok<//>` : html`<${Badge} tone="bad">${(record.outcome ?? "failed").replace("_", " ")}<//>`}</dd></div>
      <div><dt>Kind</dt><dd>${call ? "model call" : record.kind}</dd></div>
      <div><dt>When</dt><dd>${formatTime(record.recorded_at)}</dd></div>
      ${record.duration_s !== null && !isSettled(record) ? html`<div><dt>Took</dt><dd>${formatDuration(record.duration_s)}</dd></div>` : null}
      ${record.attempt_count > 1 ? html`<div><dt>Attempts</dt><dd>${record.attempt_count}</dd></div>` : null}
      <div><dt>Recorded by</dt><dd>${isSettled(record) ? "a person, who settled it" : record.worker_id ? formatWorkerName(record.worker_id, workers) : "given to the fork"}</dd></div>
      ${replayCount ? html`<div><dt>Replayed</dt><dd>${replayCount === 1 ? "once" : `${replayCount} times`}, not run again</dd></div>` : null}
      ${record.related_run_id ? html`<div><dt>Run</dt><dd><a href=${buildHref("runs", record.related_run_id)}>${record.related_run_id}</a></dd></div>` : null}
    </dl>
    <div class="does">
      ${isForkable(record) ? html`<button type="button" disabled=${Boolean(obstacles.fork)} title=${obstacles.fork || undefined} onClick=${() => openDialog("fork", record, report)}>Fork from here</button>` : null}
      ${record.has_unknown_outcome ? html`<button type="button" class="main" disabled=${Boolean(obstacles.settle)} title=${obstacles.settle || undefined} onClick=${() => openDialog("settle", record, report)}>Settle it</button>` : null}
    </div>
    ${record.reason ? html`<p class="pre">${record.reason}</p>` : null}
    ${shownRecord.error ? html`<${NamedValue} name="Error"><${ErrorDetails} error=${shownRecord.error} /><//>` : null}
    ${record.arguments && !(call && record.kind === "step" && record.output === null) ? html`<${NamedValue} name="Arguments" value=${record.arguments} />` : null}
    ${call ? html`<${ModelCall} call=${call} />` : null}
    ${record.ok && shownRecord.output !== null && !(call && shownRecord.output === call.text) ? html`<${NamedValue} name="Output" value=${shownRecord.output} size=${record.size} />` : null}
    ${record.is_truncated && !fullRecord ? html`<p class="does"><button type="button" onClick=${readFullRecord}>Read all of it (${formatBytes(record.size)})</button></p>` : null}
    <${ProblemNote} problem=${problem} refresh=${readFullRecord} />
    <div class="raw"><${Collapsible} summary="As JSON"><${CopyButton} value=${() => JSON.stringify(shownRecord, null, 2)} label="the record as JSON" /><${Value} value=${shownRecord} label="the record as JSON" /><//></div>`;
}

function ModelCall({ call }) {
  const { usage } = call;
  return html`<section class="named">
    <h3>Model call</h3>
    <dl class="run-facts small">
      <div><dt>Model</dt><dd>${call.model || "not known"}</dd></div>
      <div><dt>Cost</dt><dd>${formatCost(usage)}</dd></div>
      <div><dt>Tokens</dt><dd>${formatCount(usage.input_tokens)} in${usage.cached_tokens ? ` (${formatCount(usage.cached_tokens)} cached)` : ""}, ${formatCount(usage.output_tokens)} out</dd></div>
    </dl>
    ${call.failed_models.map((one, index) => html`<p key=${index} class="note warn">${one.model} was asked first and gave no answer${one.attempts > 1 ? ` (${one.attempts} attempts)` : ""}: ${one.error}</p>`)}
    ${call.compaction ? html`<p class="note">It sums up ${pluralize(call.compaction.summarized_count, "message")}; ${pluralize(call.compaction.kept_count, "message")} kept.</p>` : null}
    ${describeCutOff(call) ? html`<p class="note warn">${describeCutOff(call)}</p>` : null}
    ${call.feedback && !call.is_continued ? html`<p class="note warn">The answer cannot be used: ${call.feedback}</p>` : null}
    ${call.thinking ? html`<${Collapsible} summary="What it thought"><div class="pre">${call.thinking}</div><//>` : null}
    ${call.text ? html`<${NamedValue} name="Said" value=${call.text} />` : null}
    ${call.tool_calls.length ? html`<${NamedValue} name="Asks for"><ul class="calls">${call.tool_calls.map((one) => html`<li key=${one.id}><code>${one.name}</code><${Value} value=${one.arguments} label="arguments of ${one.name}" /></li>`)}</ul><//>` : null}
  </section>`;
}
