// One step, whole: what it was given, what came of it, what it cost, and what can be done from here.

import { html, useEffect, useRef, useState } from "../../html.js";
import { get, part } from "../../api.js";
import { bytes, clock, count, cutOff, duration, plural } from "../../format.js";
import { Badge, ProblemNote, Value } from "../../components.js";
import { href } from "../../router.js";
import { isForkable, may } from "./permissions.js";
import { isSettled, nameOf, numberOf, replaysOf, titleOfRow, workersOf } from "./rows.js";
import { costOf } from "./usage.js";
import { Copy, Fault, Folded, Named } from "./values.js";

export function Detail({ row, who, open, onClose }) {
  const place = useRef(null);
  useEffect(() => {
    // Below the rows, on a phone, it would open out of sight.
    if (matchMedia("(max-width: 1000px)").matches) place.current.scrollIntoView({ block: "nearest" });
  }, []);
  const title = titleOfRow(row);
  return html`<aside class="detail panel" ref=${place} aria-label="step ${numberOf(row) || ""} ${title}">
    <header>
      <h2>${numberOf(row) ? html`<span class="faint">#${numberOf(row)}</span> ` : null}${title}</h2>
      <button type="button" class="plain" aria-label="close the step" onClick=${onClose}>✕</button>
    </header>
    ${row.record
      ? html`<${RecordDetail} key=${row.record.recorded_at} record=${row.record} story=${row.story} who=${who} open=${open} />`
      : row.attempt
        ? html`<${FlightDetail} row=${row} />`
        : row.child
          ? html`<p><${Badge} tone="calm">${row.child.state}<//> <a href=${href("runs", row.child.id)}>${row.child.id}</a></p>`
          : html`<p>Since ${clock(row.begin)}. A run that waits needs no worker meanwhile.</p>`}
  </aside>`;
}

function FlightDetail({ row }) {
  const { attempt, story } = row;
  const workers = workersOf(story);
  return html`<dl class="run-facts small">
      <div><dt>Begun</dt><dd>${clock(attempt.updated_at)}</dd></div>
      <div><dt>So far</dt><dd>${duration((row.end - row.begin) / 1000)}</dd></div>
      <div><dt>Attempt</dt><dd>${attempt.attempt}</dd></div>
      ${attempt.retry_at ? html`<div><dt>Next attempt</dt><dd>${clock(attempt.retry_at)}</dd></div>` : null}
      ${story.claimed_by ? html`<div><dt>By</dt><dd>${nameOf(story.claimed_by, workers)}</dd></div>` : null}
      ${attempt.is_once ? html`<div><dt>Once</dt><dd>it must not happen twice</dd></div>` : null}
    </dl>
    ${attempt.arguments ? html`<${Named} name="Arguments" of=${attempt.arguments} />` : null}
    ${attempt.error ? html`<${Named} name="Why the attempt before failed" of=${attempt.error} />` : null}
    ${attempt.progress !== null && attempt.progress !== undefined ? html`<${Named} name="Progress" of=${attempt.progress} />` : null}`;
}

function RecordDetail({ record, story, who, open }) {
  const [whole, setWhole] = useState(null);
  const [problem, setProblem] = useState(null);
  const workers = workersOf(story);
  const told = whole ?? record;
  const can = may(story, who);
  const replays = replaysOf(story, record);
  const read = () => get(`/v1/runs/${part(story.id)}/records/${record.seq}`).then(setWhole, setProblem);
  const call = told.model_call;
  return html`<dl class="run-facts small">
      <div><dt>Outcome</dt><dd>${record.has_unknown_outcome ? html`<${Badge} tone="bad">nobody knows<//>` : record.ok ? html`<${Badge} tone="good">ok<//>` : html`<${Badge} tone="bad">${(record.outcome ?? "failed").replace("_", " ")}<//>`}</dd></div>
      <div><dt>Kind</dt><dd>${call ? "model call" : record.kind}</dd></div>
      <div><dt>When</dt><dd>${clock(record.recorded_at)}</dd></div>
      ${record.duration_s !== null && !isSettled(record) ? html`<div><dt>Took</dt><dd>${duration(record.duration_s)}</dd></div>` : null}
      ${record.attempt_count > 1 ? html`<div><dt>Attempts</dt><dd>${record.attempt_count}</dd></div>` : null}
      <div><dt>Recorded by</dt><dd>${isSettled(record) ? "a person, who settled it" : record.worker_id ? nameOf(record.worker_id, workers) : "given to the fork"}</dd></div>
      ${replays ? html`<div><dt>Replayed</dt><dd>${replays === 1 ? "once" : `${replays} times`}, not run again</dd></div>` : null}
      ${record.related_run_id ? html`<div><dt>Run</dt><dd><a href=${href("runs", record.related_run_id)}>${record.related_run_id}</a></dd></div>` : null}
    </dl>
    <div class="does">
      ${isForkable(record) ? html`<button type="button" disabled=${Boolean(can.fork)} title=${can.fork || undefined} onClick=${() => open("fork", record, story)}>Fork from here</button>` : null}
      ${record.has_unknown_outcome ? html`<button type="button" class="main" disabled=${Boolean(can.settle)} title=${can.settle || undefined} onClick=${() => open("settle", record, story)}>Settle it</button>` : null}
    </div>
    ${record.reason ? html`<p class="pre">${record.reason}</p>` : null}
    ${told.error ? html`<${Named} name="Error"><${Fault} error=${told.error} /><//>` : null}
    ${record.arguments && !(call && record.kind === "step" && record.output === null) ? html`<${Named} name="Arguments" of=${record.arguments} />` : null}
    ${call ? html`<${ModelCall} call=${call} />` : null}
    ${record.ok && told.output !== null && !(call && told.output === call.text) ? html`<${Named} name="Output" of=${told.output} size=${record.size} />` : null}
    ${record.is_truncated && !whole ? html`<p class="does"><button type="button" onClick=${read}>Read all of it (${bytes(record.size)})</button></p>` : null}
    <${ProblemNote} problem=${problem} again=${read} />
    <div class="raw"><${Folded} summary="As JSON"><${Copy} of=${() => JSON.stringify(told, null, 2)} label="the record as JSON" /><${Value} of=${told} label="the record as JSON" /><//></div>`;
}

function ModelCall({ call }) {
  const { usage } = call;
  return html`<section class="named">
    <h3>Model call</h3>
    <dl class="run-facts small">
      <div><dt>Model</dt><dd>${call.model || "not known"}</dd></div>
      <div><dt>Cost</dt><dd>${costOf(usage)}</dd></div>
      <div><dt>Tokens</dt><dd>${count(usage.input_tokens)} in${usage.cached_tokens ? ` (${count(usage.cached_tokens)} cached)` : ""}, ${count(usage.output_tokens)} out</dd></div>
    </dl>
    ${call.failed_models.map((one, index) => html`<p key=${index} class="note warn">${one.model} was asked first and gave no answer${one.attempts > 1 ? ` (${one.attempts} attempts)` : ""}: ${one.error}</p>`)}
    ${call.compaction ? html`<p class="note">It sums up ${plural(call.compaction.summarized_count, "message")}; ${plural(call.compaction.kept_count, "message")} kept.</p>` : null}
    ${cutOff(call) ? html`<p class="note warn">${cutOff(call)}</p>` : null}
    ${call.feedback && !call.is_continued ? html`<p class="note warn">The answer cannot be used: ${call.feedback}</p>` : null}
    ${call.thinking ? html`<${Folded} summary="What it thought"><div class="pre">${call.thinking}</div><//>` : null}
    ${call.text ? html`<${Named} name="Said" of=${call.text} />` : null}
    ${call.tool_calls.length ? html`<${Named} name="Asks for"><ul class="calls">${call.tool_calls.map((one) => html`<li key=${one.id}><code>${one.name}</code><${Value} of=${one.arguments} label="arguments of ${one.name}" /></li>`)}</ul><//>` : null}
  </section>`;
}
