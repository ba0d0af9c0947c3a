// An approval: what the run asks, and a form for the answer.
//
// Another person's answer never discards what was typed here: when the approval is answered elsewhere, the panel shows
// that, and the form stays as it was, with its buttons disabled.

import { html, useEffect, useRef, useState } from "./html.js";
import { encodePart, post } from "./api.js";
import { Badge, Note, ProblemNote, RelativeTime, showToast, Value } from "./components.js";
import { formatTime, formatValue } from "./format.js";
import { Form, useForm } from "./forms.js";
import { buildHref } from "./router.js";
import { buildJsonField } from "./schema.js";
import { describeMissingScope } from "./scopes.js";

const ANSWERED_BY_KEY = "holdfast-by";
const JSON_FIELD = buildJsonField("arguments");

const getKind = (approval) => (approval.tool ? "call" : approval.choices.length ? "choice" : approval.form ? "form" : "yes-no");

//   approval: as /v1/approvals returns it
//   focusRequest: { verb: "approve" | "deny", number }: which control gets the focus; a new number requests it again
//   onAnswered: called with the approval's id when the answer is given
export function ApprovalPanel({ approval, caller = null, focusRequest = null, heading = true, onAnswered = () => {} }) {
  const isTouched = useRef(false); // rendering the form in the middle of a click would cancel the click
  const isOpen = approval.state === "open";
  return html`<div class="question">
    ${heading ? html`<h2 class="asked">${approval.question}</h2>` : null}
    <${ApprovalFacts} approval=${approval} />
    ${isOpen ? null : html`<${ApprovalOutcome} approval=${approval} />`}
    ${isOpen || isTouched.current ? html`<${AnswerForm} approval=${approval} caller=${caller} focusRequest=${focusRequest} isClosed=${!isOpen} onTouch=${() => (isTouched.current = true)} onAnswered=${onAnswered} />` : null}
  </div>`;
}

function ApprovalFacts({ approval }) {
  return html`<dl class="facts">
    <div><dt>asked by</dt><dd><a href=${buildHref("runs", approval.run_id)}>${approval.run_id}</a> <span class="faint">(${approval.workflow}, number ${approval.step_number})</span></dd></div>
    <div><dt>asked</dt><dd><${RelativeTime} at=${approval.requested_at} />${approval.assignee ? html`, of <strong>${approval.assignee}</strong>` : ", of whoever sees it"}${
      approval.reminder_count ? `, with ${approval.reminder_count === 1 ? "a reminder" : `${approval.reminder_count} reminders`}` : ""}</dd></div>
    ${approval.expires_at && approval.state === "open"
      ? html`<div><dt>until</dt><dd><${RelativeTime} at=${approval.expires_at} /> <span class="faint">(${formatTime(approval.expires_at)})</span>: then the run asks the next person, or goes on without an answer</dd></div>`
      : null}
    ${approval.state === "open" && !approval.expires_at ? html`<div><dt>until</dt><dd>somebody answers: the run waits, and needs no process meanwhile</dd></div>` : null}
    ${approval.tool ? html`<div><dt>call</dt><dd>of tool <code>${approval.tool}</code>${approval.reason ? html`, since ${approval.reason}` : null}</dd></div>` : null}
  </dl>`;
}

// The answer to a closed approval, or that there is none.
function ApprovalOutcome({ approval }) {
  const { answer } = approval;
  if (!answer) return html`<${Note}>Nobody waits for an answer any more: its time was over, or the run has ended, was taken back, or asks something else in its place.<//>`;
  return html`<${Note} tone=${answer.approved ? "good" : "warn"}>
    <strong>${answer.approved ? "Yes" : "No"}</strong>, said ${answer.answered_by || approval.answered_by || "somebody"} <${RelativeTime} at=${approval.answered_at} />${answer.reason ? html`: ${answer.reason}` : "."}
    ${approval.state === "withdrawn" ? html` <span class="faint">The run has gone back behind it since.</span>` : null}
    ${answer.value !== null && answer.value !== undefined ? html`<${Value} value=${answer.value} label="answer" />` : null}
    ${answer.arguments ? html`<div class="faint">with other arguments:</div><${Value} value=${answer.arguments} label="arguments that were approved" />` : null}
  <//>`;
}

export const renderOutcome = ({ state, answer }) => {
  if (!answer) return html`<${Badge}>${state}<//>`;
  return html`<${Badge} tone=${answer.approved ? "good" : "warn"}>${answer.approved ? "yes" : "no"}<//>`;
};

const APPROVE_LABELS = { "yes-no": "Approve", choice: "Answer", form: "Answer", call: "Approve the call" };

function AnswerForm({ approval, caller, focusRequest, isClosed, onTouch, onAnswered }) {
  const kind = getKind(approval);
  const [by, setBy] = useState(localStorage.getItem(ANSWERED_BY_KEY) ?? "");
  const [reason, setReason] = useState("");
  const [choice, setChoice] = useState(null);
  const [isEditing, setEditing] = useState(false);
  const [problem, setProblem] = useState(null); // what the server says is wrong
  const [isChoiceMissing, setChoiceMissing] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const form = useForm(approval.form ?? {}, approval.arguments ?? undefined, kind === "call" && !approval.form?.properties ? JSON_FIELD : undefined);
  const element = useRef(null);
  useEffect(() => {
    if (!focusRequest) return;
    const selector = focusRequest.verb === "approve" ? "fieldset input, .form input, .form textarea, .form select, button.main" : "button.danger";
    element.current?.querySelector(selector)?.focus();
  }, [focusRequest?.number]);

  const missingScope = describeMissingScope(caller, "operate");
  const isDisabled = isClosed || isBusy || Boolean(missingScope);
  const hasForm = kind === "form" || isEditing;

  const buildBody = () => {
    if (kind === "choice") {
      setChoiceMissing(choice === null);
      return choice === null ? null : { value: choice };
    }
    if (!hasForm) return {};
    const { ok, value } = form.read();
    if (!ok) return null;
    if (kind === "form") return { value: value === undefined ? null : value };
    const known = new Set(Object.keys(approval.form?.properties ?? {}));
    const otherArguments = form.field === JSON_FIELD ? [] : Object.entries(approval.arguments ?? {}).filter(([name]) => !known.has(name));
    return { arguments: { ...Object.fromEntries(otherArguments), ...value } };
  };
  const send = async (verb) => {
    const answer = verb === "approve" ? buildBody() : {};
    if (answer === null) return;
    setBusy(true);
    setProblem(null);
    try {
      const { changed } = await post(`/v1/approvals/${encodePart(approval.id)}/${verb}`, { ...answer, ...(by.trim() ? { by: by.trim() } : {}), reason });
      localStorage.setItem(ANSWERED_BY_KEY, by.trim());
      showToast(changed ? `${verb === "approve" ? "Approved" : "Denied"}: ${approval.question.slice(0, 80)}` : "You had said the very same before.", "good");
      onAnswered(approval.id);
    } catch (problem) {
      setProblem(problem);
    } finally {
      setBusy(false);
    }
  };
  const serverViolations = findViolations(problem, kind);
  const shownForm = serverViolations.length ? { ...form, violations: [...form.violations, ...serverViolations] } : form;
  return html`<form ref=${element} class="answer" onSubmit=${(event) => event.preventDefault()} onInput=${onTouch} aria-label="answer">
    ${kind === "call" && approval.arguments ? html`<${ArgumentTable} approval=${approval} isEditing=${isEditing} onEditing=${setEditing} isDisabled=${isDisabled} />` : null}
    ${kind === "choice" ? html`<fieldset class="choices" role="radiogroup" aria-label="choices" aria-invalid=${isChoiceMissing && choice === null ? "true" : undefined}>
      ${approval.choices.map((one) => html`<label key=${one} class="line"><input type="radio" name=${approval.id} checked=${choice === one} disabled=${isDisabled} onChange=${() => setChoice(one)} />${one}</label>`)}
      ${isChoiceMissing && choice === null ? html`<span class="fault" role="alert">Choose one.</span>` : null}
    </fieldset>` : null}
    ${hasForm ? html`<${Form} form=${shownForm} disabled=${isDisabled} />` : null}
    <div class="beside">
      <label class="field">Reason<input value=${reason} disabled=${isDisabled} maxlength="10000" onInput=${(event) => setReason(event.target.value)} /><span class="hint">may be left out; it is recorded</span></label>
      <label class="field">Answered by<input value=${by} disabled=${isDisabled} maxlength="200" autocomplete="name" placeholder=${caller?.name ?? ""} onInput=${(event) => setBy(event.target.value)} /><span class="hint">${
        caller?.key_id ? `recorded with the name of your key, ${caller.name}` : "kept in this browser for the next time"}</span></label>
    </div>
    ${problem ? html`<div class="answer-problem">${problem.status === 409
      ? html`<div class="note warn" role="alert"><strong>Somebody was quicker, or the run went on.</strong><div>${problem.message}</div></div>`
      : html`<${ProblemNote} problem=${problem} />`}</div>` : null}
    <div class="does">
      <button type="button" class="main" disabled=${isDisabled} title=${missingScope || undefined} onClick=${() => send("approve")}>${isEditing ? "Approve with these arguments" : APPROVE_LABELS[kind]}</button>
      <button type="button" class="danger" disabled=${isDisabled} title=${missingScope || undefined} onClick=${() => send("deny")}>Deny</button>
      ${missingScope ? html`<span class="faint">${missingScope}</span>` : null}
      ${isClosed ? html`<span class="faint">It takes no answer any more.</span>` : null}
    </div>
  </form>`;
}

function ArgumentTable({ approval, isEditing, onEditing, isDisabled }) {
  return html`<div class="arguments">
    <table class="plain"><caption class="out-of-sight">arguments</caption><tbody>
      ${Object.entries(approval.arguments).map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td><pre>${formatValue(value)}</pre></td></tr>`)}
    </tbody></table>
    <label class="line"><input type="checkbox" checked=${isEditing} disabled=${isDisabled} onChange=${(event) => onEditing(event.target.checked)} />edit the arguments before approving</label>
  </div>`;
}

// The server's violations by the paths of the form: "value.lines.0.amount" is ["lines", 0, "amount"].
function findViolations(problem, kind) {
  const root = kind === "call" ? "arguments" : "value";
  return (problem?.details?.violations ?? [])
    .filter(({ path }) => path === root || path.startsWith(`${root}.`))
    .map(({ path, message }) => ({ path: path.split(".").slice(1).map((step) => (/^\d+$/.test(step) ? Number(step) : step)), message }));
}
