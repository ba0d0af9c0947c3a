// The conversation of an agent's run, turn by turn, and the answer that is being streamed.

import { html, useEffect, useRef, useState } from "../../html.js";
import { encodePart, get } from "../../api.js";
import { Badge, EmptyState, ProblemNote, Value } from "../../components.js";
import { useLoader } from "../../data.js";
import { describeCutOff, formatValue, pluralize } from "../../format.js";
import { buildHref, updateQuery } from "../../router.js";
import { RunApprovals } from "./approvals.js";
import { isEnded } from "./rows.js";
import { UsageText } from "./usage.js";
import { CodeText, Collapsible } from "./values.js";

const MIN_INTERVAL_MS = 600; // between two requests for a conversation: each one loads all of it

// A value that changes at most once per interval.
function useThrottled(value, intervalMs) {
  const [throttled, setThrottled] = useState(value);
  const last = useRef(0);
  useEffect(() => {
    if (value === throttled) return undefined;
    const timer = setTimeout(() => {
      last.current = Date.now();
      setThrottled(value);
    }, Math.max(0, last.current + intervalMs - Date.now()));
    return () => clearTimeout(timer);
  }, [value, throttled]);
  return throttled;
}

export function Conversation({ report, answers, caller }) {
  const version = useThrottled([report.journal.at(-1)?.seq, report.state, report.epoch].join(), MIN_INTERVAL_MS);
  const { data, problem, refresh, loading } = useLoader((signal) => get(`/v1/runs/${encodePart(report.id)}/conversation`, {}, signal), [report.id, version], { live: false });
  const items = data?.items ?? [];
  const recordedNumbers = new Set(items.filter((one) => one.role === "model" || one.role === "summary").map((one) => one.number));
  const hasEnded = isEnded(report.state);
  const streaming = Object.values(answers).filter((one) => !recordedNumbers.has(one.step));
  const end = useRef(null);
  const isAtEnd = useRef(false);
  const streamedText = streaming.map((one) => one.text).join("");
  useEffect(() => {
    // A page scrolled to its end stays there while the answer grows.
    const update = () => (isAtEnd.current = window.innerHeight + window.scrollY > document.documentElement.scrollHeight - 80);
    window.addEventListener("scroll", update);
    update();
    return () => window.removeEventListener("scroll", update);
  }, []);
  useEffect(() => {
    if (isAtEnd.current && !hasEnded) end.current?.scrollIntoView({ block: "end" });
  }, [streamedText, items.length]);
  const problemNote = html`<${ProblemNote} problem=${problem} refresh=${refresh} />`;
  if (!items.length && !streaming.length) return problem ? problemNote : loading ? null : html`<${EmptyState}>Nothing was said in this run: it is no agent's, or has not begun.<//>`;
  return html`${problemNote}
    <ol class="conversation" aria-label="conversation">
      ${items.map((one, index) => html`<${Message} key=${index} one=${one} retracted=${answers[one.number]?.retracted ?? []} />`)}
      ${streaming.map((one) => html`<${StreamingAnswer} key=${`f${one.step}`} one=${one} hasEnded=${hasEnded} />`)}
    </ol>
    ${report.approvals.some((one) => one.state === "open") ? html`<div class="asks"><${RunApprovals} report=${report} caller=${caller} onlyOpen=${true} /></div>` : null}
    <div ref=${end}></div>`;
}

const ROLE_LABELS = { system: "system", user: "user", correction: "correction", note: "note" };

function Message({ one, retracted }) {
  const isModel = one.role === "model" || one.role === "summary";
  return html`${isModel && retracted.length ? html`<${RetractedTexts} texts=${retracted} step=${one.number} />` : null}
    <li class="said ${one.role} ${one.is_history ? "before" : ""} ${one.ok === false ? "bad" : ""}">
      <div class="by">
        <strong>${isModel ? one.model || "model" : one.role === "tool" ? one.name : ROLE_LABELS[one.role] ?? one.role}</strong>
        ${one.number ? html`<button type="button" class="plain place" title="see it in the timeline" aria-label="step ${one.number} in the timeline" onClick=${() => updateQuery({ tab: "timeline", find: one.number })}>#${one.number}</button>` : null}
        ${one.role === "summary" ? html`<${Badge}>sums up what was said before<//>` : null}
        ${one.final ? html`<${Badge} tone="good">answer<//>` : null}
        ${one.role === "tool" && !one.ok ? html`<${Badge} tone="bad">failed<//>` : null}
        ${one.is_history ? html`<${Badge}>before this run<//>` : null}
        ${one.child_run_id ? html`<a href=${buildHref("runs", one.child_run_id)}>${one.child_run_id}</a>` : null}
        ${one.usage ? html`<span class="right"><${UsageText} usage=${one.usage} /></span>` : null}
      </div>
      ${(one.failed_models ?? []).map((model, index) => html`<p key=${index} class="note warn">${model.model} was asked first and gave no answer: ${model.error}</p>`)}
      ${one.approval ? html`<${ApprovalNote} approval=${one.approval} />` : null}
      ${one.thinking ? html`<${Collapsible} summary="What it thought"><div class="pre faint">${one.thinking}</div><//>` : null}
      ${one.role === "tool" ? html`<${LongText} value=${one.content} label="what ${one.name} returned" />` : one.text ? html`<div class="pre">${one.role === "note" ? html`<${CodeText}>${one.text}<//>` : one.text}</div>` : null}
      ${(one.tool_calls ?? []).map((call, index) => html`<${ToolCall} key=${index} call=${call} />`)}
      ${describeCutOff(one) ? html`<p class="note warn">${describeCutOff(one)}</p>` : null}
      ${one.feedback && !one.is_continued ? html`<p class="note warn">It cannot be used: ${one.feedback}</p>` : null}
    </li>`;
}

function ApprovalNote({ approval }) {
  const by = approval.answered_by ? ` by ${approval.answered_by}` : "";
  return html`<p class="note ${approval.approved ? "good" : "warn"}">${approval.approved ? "Approved" : "Denied"}${by || ": nobody answered in time"}${approval.reason ? `: ${approval.reason}` : ""}${approval.changed_arguments ? html`<div class="faint">with other arguments:</div><${Value} value=${approval.changed_arguments} label="arguments that were approved" />` : null}</p>`;
}

function ToolCall({ call }) {
  const text = formatValue(call.arguments);
  const argumentsText = typeof call.arguments === "object" && call.arguments !== null
    ? Object.entries(call.arguments).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")
    : text;
  return argumentsText.length <= 110 && !argumentsText.includes("\\n")
    ? html`<div class="call"><code>→ ${call.name}(${argumentsText})</code></div>`
    : html`<div class="call"><${Collapsible} summary=${html`<code>→ ${call.name}(…)</code>`}><${Value} value=${call.arguments} label="arguments of ${call.name}" /><//></div>`;
}

const MAX_SHOWN_CHARS = 1500;
function LongText({ value, label }) {
  const text = formatValue(value);
  if (text.length <= MAX_SHOWN_CHARS) return html`<div class="pre mono">${text}</div>`;
  return html`<div class="pre mono">${text.slice(0, MAX_SHOWN_CHARS)}…</div><${Collapsible} summary=${`All ${pluralize(text.length, "character")}`}><${Value} value=${value} label=${label} /><//>`;
}

// The answer that is being streamed. Screen readers read it when it is complete, not word by word.
function StreamingAnswer({ one, hasEnded }) {
  const isHidden = hasEnded || (one.done && !one.text); // it has failed, or was abandoned
  return html`<${RetractedTexts} texts=${one.retracted} step=${one.step} />
    ${isHidden ? null : html`<li class="said model flight" aria-busy="true">
      <div class="by"><strong>model</strong> <span class="faint">#${one.step}</span> <${Badge} tone="calm">${one.text ? "speaking" : "being asked"}<//></div>
      <div class="pre">${one.text}<span class="cursor" aria-hidden="true"></span></div>
    </li>`}`;
}

function RetractedTexts({ texts, step }) {
  return texts.map((text, index) => html`<li key=${`${step}-${index}`} class="said taken-back">
    <div class="by"><strong>taken back</strong> <span class="faint">#${step}</span> <span class="faint">what had been said until its worker died or the attempt failed; it was not recorded</span></div>
    <del class="pre">${text}</del>
  </li>`);
}
