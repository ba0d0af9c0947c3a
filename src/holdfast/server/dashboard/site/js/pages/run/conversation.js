// What was said in an agent's run, turn by turn, and what its model is saying now.

import { html, useEffect, useRef, useState } from "../../html.js";
import { get, part } from "../../api.js";
import { useLoaded } from "../../data.js";
import { asText, cutOff, plural } from "../../format.js";
import { Badge, Empty, ProblemNote, Value } from "../../components.js";
import { href, refine } from "../../router.js";
import { Questions } from "./approvals.js";
import { isEnded } from "./rows.js";
import { Spent } from "./usage.js";
import { Folded, Words } from "./values.js";

const PAUSE = 600; // milliseconds, at least, between two readings of a conversation: it is read as a whole

// A value that changes no more often than so.
function useCalm(value, pause) {
  const [calm, setCalm] = useState(value);
  const last = useRef(0);
  useEffect(() => {
    if (value === calm) return undefined;
    const timer = setTimeout(() => {
      last.current = Date.now();
      setCalm(value);
    }, Math.max(0, last.current + pause - Date.now()));
    return () => clearTimeout(timer);
  }, [value, calm]);
  return calm;
}

export function Conversation({ story, answers, who }) {
  const state = useCalm([story.journal.at(-1)?.seq, story.state, story.epoch].join(), PAUSE);
  const { data, problem, again, loading } = useLoaded((signal) => get(`/v1/runs/${part(story.id)}/conversation`, {}, signal), [story.id, state], { live: false });
  const items = data?.items ?? [];
  const told = new Set(items.filter((one) => one.role === "model" || one.role === "summary").map((one) => one.number));
  const over = isEnded(story.state);
  const flights = Object.values(answers).filter((one) => !told.has(one.step));
  const end = useRef(null);
  const watches = useRef(false);
  const said = flights.map((one) => one.text).join("");
  useEffect(() => {
    // Whoever looks at the end goes on to see it while the answer grows.
    const look = () => (watches.current = window.innerHeight + window.scrollY > document.documentElement.scrollHeight - 80);
    window.addEventListener("scroll", look);
    look();
    return () => window.removeEventListener("scroll", look);
  }, []);
  useEffect(() => {
    if (watches.current && !over) end.current?.scrollIntoView({ block: "end" });
  }, [said, items.length]);
  const complaint = html`<${ProblemNote} problem=${problem} again=${again} />`;
  if (!items.length && !flights.length) return problem ? complaint : loading ? null : html`<${Empty}>Nothing was said in this run: it is no agent's, or has not begun.<//>`;
  return html`${complaint}
    <ol class="conversation" aria-label="conversation">
      ${items.map((one, index) => html`<${Said} key=${index} one=${one} takenBack=${answers[one.number]?.takenBack ?? []} />`)}
      ${flights.map((one) => html`<${InFlight} key=${`f${one.step}`} one=${one} over=${over} />`)}
    </ol>
    ${story.approvals.some((one) => one.state === "open") ? html`<div class="asks"><${Questions} story=${story} who=${who} onlyOpen=${true} /></div>` : null}
    <div ref=${end}></div>`;
}

const WHO = { system: "system", user: "user", correction: "correction", note: "note" };

function Said({ one, takenBack }) {
  const isModel = one.role === "model" || one.role === "summary";
  return html`${isModel && takenBack.length ? html`<${TakenBack} texts=${takenBack} step=${one.number} />` : null}
    <li class="said ${one.role} ${one.is_history ? "before" : ""} ${one.ok === false ? "bad" : ""}">
      <div class="by">
        <strong>${isModel ? one.model || "model" : one.role === "tool" ? one.name : WHO[one.role] ?? one.role}</strong>
        ${one.number ? html`<button type="button" class="plain place" title="see it in the timeline" aria-label="step ${one.number} in the timeline" onClick=${() => refine({ tab: "timeline", find: one.number })}>#${one.number}</button>` : null}
        ${one.role === "summary" ? html`<${Badge}>sums up what was said before<//>` : null}
        ${one.final ? html`<${Badge} tone="good">answer<//>` : null}
        ${one.role === "tool" && !one.ok ? html`<${Badge} tone="bad">failed<//>` : null}
        ${one.is_history ? html`<${Badge}>before this run<//>` : null}
        ${one.child_run_id ? html`<a href=${href("runs", one.child_run_id)}>${one.child_run_id}</a>` : null}
        ${one.usage ? html`<span class="right"><${Spent} usage=${one.usage} /></span>` : null}
      </div>
      ${(one.failed_models ?? []).map((model, index) => html`<p key=${index} class="note warn">${model.model} was asked first and gave no answer: ${model.error}</p>`)}
      ${one.approval ? html`<${Approval} approval=${one.approval} />` : null}
      ${one.thinking ? html`<${Folded} summary="What it thought"><div class="pre faint">${one.thinking}</div><//>` : null}
      ${one.role === "tool" ? html`<${Long} of=${one.content} label="what ${one.name} returned" />` : one.text ? html`<div class="pre">${one.role === "note" ? html`<${Words}>${one.text}<//>` : one.text}</div>` : null}
      ${(one.tool_calls ?? []).map((call, index) => html`<${Call} key=${index} call=${call} />`)}
      ${cutOff(one) ? html`<p class="note warn">${cutOff(one)}</p>` : null}
      ${one.feedback && !one.is_continued ? html`<p class="note warn">It cannot be used: ${one.feedback}</p>` : null}
    </li>`;
}

function Approval({ approval }) {
  const by = approval.answered_by ? ` by ${approval.answered_by}` : "";
  return html`<p class="note ${approval.approved ? "good" : "warn"}">${approval.approved ? "Approved" : "Denied"}${by || ": nobody answered in time"}${approval.reason ? `: ${approval.reason}` : ""}${approval.changed_arguments ? html`<div class="faint">with other arguments:</div><${Value} of=${approval.changed_arguments} label="arguments that were approved" />` : null}</p>`;
}

function Call({ call }) {
  const text = asText(call.arguments);
  const brief = typeof call.arguments === "object" && call.arguments !== null
    ? Object.entries(call.arguments).map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ")
    : text;
  return brief.length <= 110 && !brief.includes("\\n")
    ? html`<div class="call"><code>→ ${call.name}(${brief})</code></div>`
    : html`<div class="call"><${Folded} summary=${html`<code>→ ${call.name}(…)</code>`}><${Value} of=${call.arguments} label="arguments of ${call.name}" /><//></div>`;
}

const SHOWN = 1500;
function Long({ of, label }) {
  const text = asText(of);
  if (text.length <= SHOWN) return html`<div class="pre mono">${text}</div>`;
  return html`<div class="pre mono">${text.slice(0, SHOWN)}…</div><${Folded} summary=${`All ${plural(text.length, "character")}`}><${Value} of=${of} label=${label} /><//>`;
}

// The answer that is being given. Screen readers are told of it when it is there, not word by word.
function InFlight({ one, over }) {
  const isGone = over || (one.done && !one.text); // it has failed, or was left
  return html`<${TakenBack} texts=${one.takenBack} step=${one.step} />
    ${isGone ? null : html`<li class="said model flight" aria-busy="true">
      <div class="by"><strong>model</strong> <span class="faint">#${one.step}</span> <${Badge} tone="calm">${one.text ? "speaking" : "being asked"}<//></div>
      <div class="pre">${one.text}<span class="cursor" aria-hidden="true"></span></div>
    </li>`}`;
}

function TakenBack({ texts, step }) {
  return texts.map((text, index) => html`<li key=${`${step}-${index}`} class="said taken-back">
    <div class="by"><strong>taken back</strong> <span class="faint">#${step}</span> <span class="faint">what had been said until its worker died or the attempt failed; it was not recorded</span></div>
    <del class="pre">${text}</del>
  </li>`);
}
