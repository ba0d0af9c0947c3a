// A question that a run asks people: what is asked, and a form to answer it, made of what the question wants.
//
// What somebody has typed is never thrown away by what others do: when a question is answered elsewhere meanwhile, that
// is told, and the form stays as it was, without its buttons.

import { html, useEffect, useRef, useState } from "./html.js";
import { part, post } from "./api.js";
import { asText, clock } from "./format.js";
import { Form, useForm } from "./forms.js";
import { Ago, Badge, Note, ProblemNote, toast, Value } from "./components.js";
import { href } from "./router.js";
import { jsonField } from "./schema.js";
import { lacks } from "./scopes.js";

const NAME = "holdfast-by";
const AS_JSON = jsonField("arguments");

const kindOf = (approval) => (approval.tool ? "call" : approval.choices.length ? "choice" : approval.form ? "form" : "yes-no");

//   approval: as /v1/approvals tells it
//   wish: { word: "approve" | "deny", number }: where the keyboard is wanted; a new number wishes again
//   onAnswered: is told when the answer is given
export function Question({ approval, who = null, wish = null, heading = true, onAnswered = () => {} }) {
  const touched = useRef(false); // drawing the form in the middle of a click would undo the click
  const isOpen = approval.state === "open";
  return html`<div class="question">
    ${heading ? html`<h2 class="asked">${approval.question}</h2>` : null}
    <${Facts} approval=${approval} />
    ${isOpen ? null : html`<${Outcome} approval=${approval} />`}
    ${isOpen || touched.current ? html`<${AnswerForm} approval=${approval} who=${who} wish=${wish} off=${!isOpen} onTouched=${() => (touched.current = true)} onAnswered=${onAnswered} />` : null}
  </div>`;
}

function Facts({ approval }) {
  return html`<dl class="facts">
    <div><dt>asked by</dt><dd><a href=${href("runs", approval.run_id)}>${approval.run_id}</a> <span class="faint">(${approval.workflow}, number ${approval.step_number})</span></dd></div>
    <div><dt>asked</dt><dd><${Ago} at=${approval.requested_at} />${approval.assignee ? html`, of <strong>${approval.assignee}</strong>` : ", of whoever sees it"}${
      approval.reminder_count ? `, with ${approval.reminder_count === 1 ? "a reminder" : `${approval.reminder_count} reminders`}` : ""}</dd></div>
    ${approval.expires_at && approval.state === "open"
      ? html`<div><dt>until</dt><dd><${Ago} at=${approval.expires_at} /> <span class="faint">(${clock(approval.expires_at)})</span>: then the run asks the next person, or goes on without an answer</dd></div>`
      : null}
    ${approval.state === "open" && !approval.expires_at ? html`<div><dt>until</dt><dd>somebody answers: the run waits, and needs no process meanwhile</dd></div>` : null}
    ${approval.tool ? html`<div><dt>call</dt><dd>of tool <code>${approval.tool}</code>${approval.reason ? html`, since ${approval.reason}` : null}</dd></div>` : null}
  </dl>`;
}

// What has become of a question.
function Outcome({ approval }) {
  const { answer } = approval;
  if (!answer) return html`<${Note}>Nobody waits for an answer any more: its time was over, or the run has ended, was taken back, or asks something else in its place.<//>`;
  return html`<${Note} tone=${answer.approved ? "good" : "warn"}>
    <strong>${answer.approved ? "Yes" : "No"}</strong>, said ${answer.answered_by || approval.answered_by || "somebody"} <${Ago} at=${approval.answered_at} />${answer.reason ? html`: ${answer.reason}` : "."}
    ${approval.state === "withdrawn" ? html` <span class="faint">The run has gone back behind it since.</span>` : null}
    ${answer.value !== null && answer.value !== undefined ? html`<${Value} of=${answer.value} label="answer" />` : null}
    ${answer.arguments ? html`<div class="faint">with other arguments:</div><${Value} of=${answer.arguments} label="arguments that were approved" />` : null}
  <//>`;
}

export const outcomeOf = ({ state, answer }) => {
  if (!answer) return html`<${Badge}>${state}<//>`;
  return html`<${Badge} tone=${answer.approved ? "good" : "warn"}>${answer.approved ? "yes" : "no"}<//>`;
};

const YES = { "yes-no": "Approve", choice: "Answer", form: "Answer", call: "Approve the call" };

function AnswerForm({ approval, who, wish, off, onTouched, onAnswered }) {
  const kind = kindOf(approval);
  const [by, setBy] = useState(localStorage.getItem(NAME) ?? "");
  const [reason, setReason] = useState("");
  const [choice, setChoice] = useState(null);
  const [edits, setEdits] = useState(false);
  const [told, setTold] = useState(null); // what the server says is wrong
  const [isMissing, setMissing] = useState(false);
  const [busy, setBusy] = useState(false);
  const form = useForm(approval.form ?? {}, approval.arguments ?? undefined, kind === "call" && !approval.form?.properties ? AS_JSON : undefined);
  const place = useRef(null);
  useEffect(() => {
    if (!wish) return;
    const first = wish.word === "approve" ? "fieldset input, .form input, .form textarea, .form select, button.main" : "button.danger";
    place.current?.querySelector(first)?.focus();
  }, [wish?.number]);

  const why = lacks(who, "operate");
  const isOff = off || busy || Boolean(why);
  const usesForm = kind === "form" || edits;

  const body = () => {
    if (kind === "choice") {
      setMissing(choice === null);
      return choice === null ? null : { value: choice };
    }
    if (!usesForm) return {};
    const { ok, value } = form.read();
    if (!ok) return null;
    if (kind === "form") return { value: value === undefined ? null : value };
    const known = new Set(Object.keys(approval.form?.properties ?? {}));
    const beside = form.field === AS_JSON ? [] : Object.entries(approval.arguments ?? {}).filter(([name]) => !known.has(name));
    return { arguments: { ...Object.fromEntries(beside), ...value } };
  };
  const send = async (word) => {
    const what = word === "approve" ? body() : {};
    if (what === null) return;
    setBusy(true);
    setTold(null);
    try {
      const { changed } = await post(`/v1/approvals/${part(approval.id)}/${word}`, { ...what, ...(by.trim() ? { by: by.trim() } : {}), reason });
      localStorage.setItem(NAME, by.trim());
      toast(changed ? `${word === "approve" ? "Approved" : "Denied"}: ${approval.question.slice(0, 80)}` : "You had said the very same before.", "good");
      onAnswered(approval.id);
    } catch (problem) {
      setTold(problem);
    } finally {
      setBusy(false);
    }
  };
  const remote = faultsOf(told, kind);
  const shown = remote.length ? { ...form, faults: [...form.faults, ...remote] } : form;
  return html`<form ref=${place} class="answer" onSubmit=${(event) => event.preventDefault()} onInput=${onTouched} aria-label="answer">
    ${kind === "call" && approval.arguments ? html`<${Arguments} approval=${approval} edits=${edits} onEdits=${setEdits} off=${isOff} />` : null}
    ${kind === "choice" ? html`<fieldset class="choices" role="radiogroup" aria-label="choices" aria-invalid=${isMissing && choice === null ? "true" : undefined}>
      ${approval.choices.map((one) => html`<label key=${one} class="line"><input type="radio" name=${approval.id} checked=${choice === one} disabled=${isOff} onChange=${() => setChoice(one)} />${one}</label>`)}
      ${isMissing && choice === null ? html`<span class="fault" role="alert">Choose one.</span>` : null}
    </fieldset>` : null}
    ${usesForm ? html`<${Form} form=${shown} disabled=${isOff} />` : null}
    <div class="beside">
      <label class="field">Reason<input value=${reason} disabled=${isOff} maxlength="10000" onInput=${(event) => setReason(event.target.value)} /><span class="hint">may be left out; it is recorded</span></label>
      <label class="field">Answered by<input value=${by} disabled=${isOff} maxlength="200" autocomplete="name" placeholder=${who?.name ?? ""} onInput=${(event) => setBy(event.target.value)} /><span class="hint">${
        who?.key_id ? `recorded with the name of your key, ${who.name}` : "kept in this browser for the next time"}</span></label>
    </div>
    ${told ? html`<div class="told">${told.status === 409
      ? html`<div class="note warn" role="alert"><strong>Somebody was quicker, or the run went on.</strong><div>${told.message}</div></div>`
      : html`<${ProblemNote} problem=${told} />`}</div>` : null}
    <div class="does">
      <button type="button" class="main" disabled=${isOff} title=${why || undefined} onClick=${() => send("approve")}>${edits ? "Approve with these arguments" : YES[kind]}</button>
      <button type="button" class="danger" disabled=${isOff} title=${why || undefined} onClick=${() => send("deny")}>Deny</button>
      ${why ? html`<span class="faint">${why}</span>` : null}
      ${off ? html`<span class="faint">It takes no answer any more.</span>` : null}
    </div>
  </form>`;
}

function Arguments({ approval, edits, onEdits, off }) {
  return html`<div class="arguments">
    <table class="plain"><caption class="out-of-sight">arguments</caption><tbody>
      ${Object.entries(approval.arguments).map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td><pre>${asText(value)}</pre></td></tr>`)}
    </tbody></table>
    <label class="line"><input type="checkbox" checked=${edits} disabled=${off} onChange=${(event) => onEdits(event.target.checked)} />edit the arguments before approving</label>
  </div>`;
}

// What the server says of single fields, as the form tells it: "value.lines.0.amount" is ["lines", 0, "amount"].
function faultsOf(problem, kind) {
  const root = kind === "call" ? "arguments" : "value";
  return (problem?.told?.violations ?? [])
    .filter(({ path }) => path === root || path.startsWith(`${root}.`))
    .map(({ path, message }) => ({ path: path.split(".").slice(1).map((step) => (/^\d+$/.test(step) ? Number(step) : step)), message }));
}
