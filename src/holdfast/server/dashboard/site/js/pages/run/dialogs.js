// Dialogs for actions on a run: what a retry rewinds, which value to use, which budget to set.

import { html, useEffect, useState } from "../../html.js";
import { encodePart, get, post, put } from "../../api.js";
import { ActionButton, ConfirmDialog, Dialog, Note, ProblemNote, useClose, Value } from "../../components.js";
import { pluralize } from "../../format.js";
import { Form, useForm } from "../../forms.js";
import { navigate } from "../../router.js";
import { buildJsonField } from "../../schema.js";
import { isForkable } from "./permissions.js";
import { formatTitle } from "./rows.js";
import { CodeText } from "./values.js";

const buildRunPath = (report) => `/v1/runs/${encodePart(report.id)}`;
const OUTPUT_FIELD = buildJsonField("What it returned");
const VALUE_FIELD = buildJsonField("Value");
const MAX_SHOWN_RECORDS = 12; // of those that a retry rewinds

function CancelDialog({ report, onClose }) {
  return html`<${ConfirmDialog} title="Cancel this run?" confirmLabel="Cancel the run" onClose=${onClose}
    text="What it is doing is interrupted, and steps that can be undone are undone. It can be retried afterwards, unless something was undone."
    action=${() => post(`${buildRunPath(report)}/cancel`)} />`;
}

// Lists the records that a retry rewinds.
function RetryDialog({ report, onClose }) {
  const close = useClose(onClose);
  const [canRunAgain, setCanRunAgain] = useState(false);
  const { retry } = report;
  if (!retry) return html`<${Dialog} title="Retry this run?" onClose=${onClose}><p>It goes on already.</p><div class="does"><button onClick=${onClose}>Close</button></div><//>`;
  const rewoundSeqs = new Set(retry.rewound_seqs);
  const records = report.journal.filter((one) => rewoundSeqs.has(one.seq));
  const unreadCount = report.journal.length >= report.record_count ? 0 : retry.rewound_seqs.length - records.length;
  const otherCount = Math.max(0, records.length - MAX_SHOWN_RECORDS) + unreadCount;
  return html`<${Dialog} title="Retry this run?" onClose=${onClose}>
    <p><${CodeText}>${retry.message}<//></p>
    ${retry.rewound_seqs.length
      ? html`<p>It goes on from where it went wrong. Taken back from its journal:</p>
          <ul class="taken">${records.slice(0, MAX_SHOWN_RECORDS).map((one) => html`<li key=${one.seq}>${one.number ? `#${one.number} ` : ""}${formatTitle(one)}${one.ok ? "" : ", which failed"}</li>`)}</ul>
          ${otherCount ? html`<p class="faint">and ${pluralize(otherCount, "more record")}</p>` : null}`
      : html`<p>Nothing is taken back from its journal: all that is recorded is replayed, and not paid for again.</p>`}
    ${retry.needs_run_again
      ? html`<${Note} tone="warn"><label class="line"><input type="checkbox" checked=${canRunAgain} onChange=${(event) => setCanRunAgain(event.target.checked)} />A step that must happen only once may run a second time.</label><//>`
      : null}
    <div class="does">
      <button onClick=${onClose}>Leave it</button>
      <${ActionButton} tone="main" disabled=${retry.needs_run_again && !canRunAgain} title=${retry.needs_run_again && !canRunAgain ? "say that it may" : undefined} done="It goes on."
        action=${async () => {
          await post(`${buildRunPath(report)}/retry`, { run_again: canRunAgain });
          close();
        }}>Retry<//>
    </div>
  <//>`;
}

// A fork from a step on: the step runs again, or gets another output.
function ForkDialog({ report, record, onClose }) {
  const [chosenRecord, setChosenRecord] = useState(null);
  const startRecord = record ?? chosenRecord;
  return html`<${Dialog} title="Fork this run" onClose=${onClose}>
    <p>A new run, which shares all that was recorded before a step. This one stays as it is.</p>
    ${startRecord
      ? html`<${ForkRecordLoader} report=${report} record=${startRecord} onClose=${onClose} />`
      : html`<${ForkStepPicker} report=${report} onChoose=${setChosenRecord} onClose=${onClose} />`}
  <//>`;
}

function ForkStepPicker({ report, onChoose, onClose }) {
  const steps = report.journal.filter(isForkable);
  const [number, setNumber] = useState(String(steps.at(-1)?.number ?? ""));
  const found = steps.find((one) => String(one.number) === number.trim());
  return html`<form onSubmit=${(event) => {
    event.preventDefault();
    if (found) onChoose(found);
  }}>
    <label class="field">Number of the step
      <input inputmode="numeric" value=${number} onInput=${(event) => setNumber(event.target.value)} />
      <span class="hint">${found ? formatTitle(found) : "There is no recorded step with this number."}</span>
    </label>
    <div class="does"><button type="button" onClick=${onClose}>Leave it</button><button class="main" disabled=${!found}>Go on</button></div>
  </form>`;
}

function ForkRecordLoader({ report, record, onClose }) {
  const isTurn = record.model_call !== null && record.output === null;
  const [fullRecord, setFullRecord] = useState(record.is_truncated ? null : record);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    if (fullRecord) return;
    get(`${buildRunPath(report)}/records/${record.seq}`).then(setFullRecord, setProblem);
  }, []);
  if (problem) return html`<${ProblemNote} problem=${problem} />`;
  if (!fullRecord) return html`<p class="faint" role="status">Its value is being read.</p>`;
  return html`<${ForkForm} report=${report} record=${fullRecord} isTurn=${isTurn} onClose=${onClose} />`;
}

function ForkForm({ report, record, isTurn, onClose }) {
  const close = useClose(onClose);
  const answer = record.kind === "approval" && record.ok ? (record.output?.value ?? record.output?.approved) : record.output;
  const [mode, setMode] = useState(isTurn || !record.ok ? "again" : "value");
  const [id, setId] = useState("");
  const form = useForm(null, record.ok ? answer : undefined, OUTPUT_FIELD);
  const submit = async () => {
    const body = { at: record.number, ...(id.trim() ? { id: id.trim() } : {}) };
    if (mode === "value") {
      const { ok, value } = form.read();
      if (!ok) return null;
      body.output = value;
    }
    const run = await post(`${buildRunPath(report)}/fork`, body);
    if (close()) navigate("runs", run.id);
    return run;
  };
  return html`<p><strong>#${record.number} ${formatTitle(record)}</strong></p>
    <fieldset class="ways">
      <legend class="out-of-sight">how it goes on</legend>
      <label class="line"><input type="radio" name="way" checked=${mode === "again"} onChange=${() => setMode("again")} />It runs again, and all that comes after it</label>
      <label class="line"><input type="radio" name="way" checked=${mode === "value"} disabled=${isTurn} onChange=${() => setMode("value")} />It is taken to have returned this:</label>
      ${isTurn ? html`<span class="hint faint">A model's turn can only be taken anew; change what a tool returned instead.</span>` : null}
    </fieldset>
    ${mode === "value" ? html`<${Form} form=${form} />` : null}
    <label class="field">Id of the new run
      <input value=${id} onInput=${(event) => setId(event.target.value)} placeholder="made up unless given" autocomplete="off" spellcheck=${false} />
    </label>
    <div class="does">
      <button type="button" onClick=${onClose}>Leave it</button>
      <${ActionButton} tone="main" action=${submit} done=${(run) => run && `Forked: ${run.id}`}>Fork<//>
    </div>`;
}

// Settles a `once` step that may have happened: a person decides its outcome.
function SettleDialog({ report, record, onClose }) {
  const close = useClose(onClose);
  const [mode, setMode] = useState("happened");
  const form = useForm(null, null, OUTPUT_FIELD);
  const submit = async () => {
    const body = { step: record.number };
    if (mode === "happened") {
      const { ok, value } = form.read();
      if (!ok) return null;
      body.output = value;
    } else body.happened = false;
    await post(`${buildRunPath(report)}/settle`, body);
    close();
    return true;
  };
  return html`<${Dialog} title="Did step ${record.number} happen?" onClose=${onClose}>
    <p>A worker died in <strong>${formatTitle(record)}</strong>, which must happen only once. Nobody here knows whether it did. Look where it would show, and say so.</p>
    ${record.arguments ? html`<${Value} value=${record.arguments} label="arguments" />` : null}
    <fieldset class="ways">
      <legend class="out-of-sight">what came of it</legend>
      <label class="line"><input type="radio" name="way" checked=${mode === "happened"} onChange=${() => setMode("happened")} />It happened, and returned this:</label>
      <label class="line"><input type="radio" name="way" checked=${mode === "not"} onChange=${() => setMode("not")} />It did not happen: run it again</label>
    </fieldset>
    ${mode === "happened" ? html`<${Form} form=${form} />` : null}
    <div class="does">
      <button type="button" onClick=${onClose}>Leave it</button>
      <${ActionButton} tone="main" action=${submit} done=${(done) => done && "It goes on."}>${mode === "happened" ? "It happened" : "Run it again"}<//>
    </div>
  <//>`;
}

function SignalDialog({ report, onClose }) {
  const close = useClose(onClose);
  const [name, setName] = useState(/^signal '?([^']+)'?$/.exec(report.waits_for ?? "")?.[1] ?? "");
  const form = useForm(null, null, VALUE_FIELD);
  const submit = async () => {
    const { ok, value } = form.read();
    if (!ok || !name.trim()) return null;
    await post(`${buildRunPath(report)}/signals`, { name: name.trim(), value });
    close();
    return true;
  };
  return html`<${Dialog} title="Send a signal" onClose=${onClose}>
    <p>${report.waits_for ? `It waits for: ${report.waits_for}.` : "It is kept until the run waits for it."}</p>
    <label class="field">Name<input value=${name} required autocomplete="off" spellcheck=${false} onInput=${(event) => setName(event.target.value)} /></label>
    <${Form} form=${form} />
    <div class="does">
      <button type="button" onClick=${onClose}>Leave it</button>
      <${ActionButton} tone="main" disabled=${!name.trim()} action=${submit} done=${(done) => done && "Sent."}>Send<//>
    </div>
  <//>`;
}

const buildLimitField = (label, isInteger) => ({ kind: "number", label, hint: "", required: false, nullable: false, isInteger, exclusiveMin: 0 });
const BUDGET_FIELD = {
  kind: "object", label: "", hint: "Left empty: no such limit.", required: true, nullable: false, optional: false,
  fields: [["usd", buildLimitField("Dollars", false)], ["tokens", buildLimitField("Tokens", true)], ["turns", buildLimitField("Model calls", true)], ["seconds", buildLimitField("Seconds of work", false)]],
};

function BudgetDialog({ report, onClose }) {
  const close = useClose(onClose);
  const budgetRunId = report.budget_refusal?.run_id ?? report.id; // the run with the budget that is used up, which may be an ancestor
  const budget = report.budgets?.find((one) => one.run_id === budgetRunId)?.budget ?? (budgetRunId === report.id ? report.budget : null);
  const form = useForm(null, budget ?? {}, BUDGET_FIELD);
  const [error, setError] = useState("");
  const submit = async () => {
    const { ok, value } = form.read();
    if (!ok) return null;
    if (!Object.keys(value).length) {
      setError("Give at least one limit.");
      return null;
    }
    await put(`/v1/runs/${encodePart(budgetRunId)}/budget`, value);
    close();
    return true;
  };
  return html`<${Dialog} title="Budget" onClose=${onClose}>
    <p>${budgetRunId === report.id ? "For this run, together with all the runs that it starts." : `Of run ${budgetRunId}, which is above this one.`} ${report.budget_refusal ? report.budget_refusal.message : ""}</p>
    <${Form} form=${form} />
    ${error ? html`<p class="fault" role="alert">${error}</p>` : null}
    <div class="does">
      <button type="button" onClick=${onClose}>Leave it</button>
      <${ActionButton} tone="main" action=${submit} done=${(done) => done && "It has this budget now."}>Set<//>
    </div>
  <//>`;
}

export const DIALOGS = { cancel: CancelDialog, retry: RetryDialog, fork: ForkDialog, settle: SettleDialog, signal: SignalDialog, budget: BudgetDialog };
