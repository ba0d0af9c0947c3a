// What asks before something is done to a run: what will be taken back, which value, which budget.

import { html, useEffect, useState } from "../../html.js";
import { get, part, post, put } from "../../api.js";
import { plural } from "../../format.js";
import { Form, useForm } from "../../forms.js";
import { Act, Confirm, Dialog, Note, ProblemNote, useClosing, Value } from "../../components.js";
import { go } from "../../router.js";
import { jsonField } from "../../schema.js";
import { isForkable } from "./permissions.js";
import { titleOf } from "./rows.js";
import { Words } from "./values.js";

const at = (story) => `/v1/runs/${part(story.id)}`;
const OUTPUT = jsonField("What it returned");
const VALUE = jsonField("Value");
const SHOWN = 12; // records that a retry takes back, by name

function CancelDialog({ story, onClose }) {
  return html`<${Confirm} title="Cancel this run?" yes="Cancel the run" onClose=${onClose}
    words="What it is doing is interrupted, and steps that can be undone are undone. It can be retried afterwards, unless something was undone."
    act=${() => post(`${at(story)}/cancel`)} />`;
}

// What a retry takes back, told before it is.
function RetryDialog({ story, onClose }) {
  const close = useClosing(onClose);
  const [again, setAgain] = useState(false);
  const { retry } = story;
  if (!retry) return html`<${Dialog} title="Retry this run?" onClose=${onClose}><p>It goes on already.</p><div class="does"><button onClick=${onClose}>Close</button></div><//>`;
  const back = new Set(retry.rewound_seqs);
  const records = story.journal.filter((one) => back.has(one.seq));
  const unread = story.journal.length >= story.record_count ? 0 : retry.rewound_seqs.length - records.length;
  const others = Math.max(0, records.length - SHOWN) + unread;
  return html`<${Dialog} title="Retry this run?" onClose=${onClose}>
    <p><${Words}>${retry.message}<//></p>
    ${retry.rewound_seqs.length
      ? html`<p>It goes on from where it went wrong. Taken back from its journal:</p>
          <ul class="taken">${records.slice(0, SHOWN).map((one) => html`<li key=${one.seq}>${one.number ? `#${one.number} ` : ""}${titleOf(one)}${one.ok ? "" : ", which failed"}</li>`)}</ul>
          ${others ? html`<p class="faint">and ${plural(others, "more record")}</p>` : null}`
      : html`<p>Nothing is taken back from its journal: all that is recorded is replayed, and not paid for again.</p>`}
    ${retry.needs_run_again
      ? html`<${Note} tone="warn"><label class="line"><input type="checkbox" checked=${again} onChange=${(event) => setAgain(event.target.checked)} />A step that must happen only once may run a second time.</label><//>`
      : null}
    <div class="does">
      <button onClick=${onClose}>Leave it</button>
      <${Act} tone="main" disabled=${retry.needs_run_again && !again} title=${retry.needs_run_again && !again ? "say that it may" : undefined} done="It goes on."
        act=${async () => {
          await post(`${at(story)}/retry`, { run_again: again });
          close();
        }}>Retry<//>
    </div>
  <//>`;
}

// A new run from a step on: the step runs again, or is taken to have returned another value.
function ForkDialog({ story, record, onClose }) {
  const [choice, setChoice] = useState(null);
  const chosen = record ?? choice;
  return html`<${Dialog} title="Fork this run" onClose=${onClose}>
    <p>A new run, which shares all that was recorded before a step. This one stays as it is.</p>
    ${chosen
      ? html`<${ForkForm} story=${story} record=${chosen} onClose=${onClose} />`
      : html`<${ForkPlace} story=${story} onChoose=${setChoice} onClose=${onClose} />`}
  <//>`;
}

function ForkPlace({ story, onChoose, onClose }) {
  const steps = story.journal.filter(isForkable);
  const [number, setNumber] = useState(String(steps.at(-1)?.number ?? ""));
  const found = steps.find((one) => String(one.number) === number.trim());
  return html`<form onSubmit=${(event) => {
    event.preventDefault();
    if (found) onChoose(found);
  }}>
    <label class="field">Number of the step
      <input inputmode="numeric" value=${number} onInput=${(event) => setNumber(event.target.value)} />
      <span class="hint">${found ? titleOf(found) : "There is no recorded step with this number."}</span>
    </label>
    <div class="does"><button type="button" onClick=${onClose}>Leave it</button><button class="main" disabled=${!found}>Go on</button></div>
  </form>`;
}

function ForkForm({ story, record, onClose }) {
  const isTurn = record.model_call !== null && record.output === null;
  const [whole, setWhole] = useState(record.is_truncated ? null : record);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    if (whole) return;
    get(`${at(story)}/records/${record.seq}`).then(setWhole, setProblem);
  }, []);
  if (problem) return html`<${ProblemNote} problem=${problem} />`;
  if (!whole) return html`<p class="faint" role="status">Its value is being read.</p>`;
  return html`<${ForkChoice} story=${story} record=${whole} isTurn=${isTurn} onClose=${onClose} />`;
}

function ForkChoice({ story, record, isTurn, onClose }) {
  const close = useClosing(onClose);
  const answer = record.kind === "approval" && record.ok ? (record.output?.value ?? record.output?.approved) : record.output;
  const [way, setWay] = useState(isTurn || !record.ok ? "again" : "value");
  const [id, setId] = useState("");
  const form = useForm(null, record.ok ? answer : undefined, OUTPUT);
  const act = async () => {
    const body = { at: record.number, ...(id.trim() ? { id: id.trim() } : {}) };
    if (way === "value") {
      const { ok, value } = form.read();
      if (!ok) return null;
      body.output = value;
    }
    const run = await post(`${at(story)}/fork`, body);
    if (close()) go("runs", run.id);
    return run;
  };
  return html`<p><strong>#${record.number} ${titleOf(record)}</strong></p>
    <fieldset class="ways">
      <legend class="out-of-sight">how it goes on</legend>
      <label class="line"><input type="radio" name="way" checked=${way === "again"} onChange=${() => setWay("again")} />It runs again, and all that comes after it</label>
      <label class="line"><input type="radio" name="way" checked=${way === "value"} disabled=${isTurn} onChange=${() => setWay("value")} />It is taken to have returned this:</label>
      ${isTurn ? html`<span class="hint faint">A model's turn can only be taken anew; change what a tool returned instead.</span>` : null}
    </fieldset>
    ${way === "value" ? html`<${Form} form=${form} />` : null}
    <label class="field">Id of the new run
      <input value=${id} onInput=${(event) => setId(event.target.value)} placeholder="made up unless given" autocomplete="off" spellcheck=${false} />
    </label>
    <div class="does">
      <button type="button" onClick=${onClose}>Leave it</button>
      <${Act} tone="main" act=${act} done=${(run) => run && `Forked: ${run.id}`}>Fork<//>
    </div>`;
}

// A step that must happen only once, and may have: a person says what came of it.
function SettleDialog({ story, record, onClose }) {
  const close = useClosing(onClose);
  const [way, setWay] = useState("happened");
  const form = useForm(null, null, OUTPUT);
  const act = async () => {
    const body = { step: record.number };
    if (way === "happened") {
      const { ok, value } = form.read();
      if (!ok) return null;
      body.output = value;
    } else body.happened = false;
    await post(`${at(story)}/settle`, body);
    close();
    return true;
  };
  return html`<${Dialog} title="Did step ${record.number} happen?" onClose=${onClose}>
    <p>A worker died in <strong>${titleOf(record)}</strong>, which must happen only once. Nobody here knows whether it did. Look where it would show, and say so.</p>
    ${record.arguments ? html`<${Value} of=${record.arguments} label="arguments" />` : null}
    <fieldset class="ways">
      <legend class="out-of-sight">what came of it</legend>
      <label class="line"><input type="radio" name="way" checked=${way === "happened"} onChange=${() => setWay("happened")} />It happened, and returned this:</label>
      <label class="line"><input type="radio" name="way" checked=${way === "not"} onChange=${() => setWay("not")} />It did not happen: run it again</label>
    </fieldset>
    ${way === "happened" ? html`<${Form} form=${form} />` : null}
    <div class="does">
      <button type="button" onClick=${onClose}>Leave it</button>
      <${Act} tone="main" act=${act} done=${(done) => done && "It goes on."}>${way === "happened" ? "It happened" : "Run it again"}<//>
    </div>
  <//>`;
}

function SignalDialog({ story, onClose }) {
  const close = useClosing(onClose);
  const [name, setName] = useState(/^signal '?([^']+)'?$/.exec(story.waits_for ?? "")?.[1] ?? "");
  const form = useForm(null, null, VALUE);
  const act = async () => {
    const { ok, value } = form.read();
    if (!ok || !name.trim()) return null;
    await post(`${at(story)}/signals`, { name: name.trim(), value });
    close();
    return true;
  };
  return html`<${Dialog} title="Send a signal" onClose=${onClose}>
    <p>${story.waits_for ? `It waits for: ${story.waits_for}.` : "It is kept until the run waits for it."}</p>
    <label class="field">Name<input value=${name} required autocomplete="off" spellcheck=${false} onInput=${(event) => setName(event.target.value)} /></label>
    <${Form} form=${form} />
    <div class="does">
      <button type="button" onClick=${onClose}>Leave it</button>
      <${Act} tone="main" disabled=${!name.trim()} act=${act} done=${(done) => done && "Sent."}>Send<//>
    </div>
  <//>`;
}

const limit = (label, whole) => ({ kind: "number", label, hint: "", required: false, nullable: false, whole, above: 0 });
const BUDGET = {
  kind: "object", label: "", hint: "Left empty: no such limit.", required: true, nullable: false, optional: false,
  fields: [["usd", limit("Dollars", false)], ["tokens", limit("Tokens", true)], ["turns", limit("Model calls", true)], ["seconds", limit("Seconds of work", false)]],
};

function BudgetDialog({ story, onClose }) {
  const close = useClosing(onClose);
  const whose = story.budget_refusal?.run_id ?? story.id; // of the run whose budget is used up, which may be one above it
  const known = story.budgets?.find((one) => one.run_id === whose)?.budget ?? (whose === story.id ? story.budget : null);
  const form = useForm(null, known ?? {}, BUDGET);
  const [fault, setFault] = useState("");
  const act = async () => {
    const { ok, value } = form.read();
    if (!ok) return null;
    if (!Object.keys(value).length) {
      setFault("Give at least one limit.");
      return null;
    }
    await put(`/v1/runs/${part(whose)}/budget`, value);
    close();
    return true;
  };
  return html`<${Dialog} title="Budget" onClose=${onClose}>
    <p>${whose === story.id ? "For this run, together with all the runs that it starts." : `Of run ${whose}, which is above this one.`} ${story.budget_refusal ? story.budget_refusal.message : ""}</p>
    <${Form} form=${form} />
    ${fault ? html`<p class="fault" role="alert">${fault}</p>` : null}
    <div class="does">
      <button type="button" onClick=${onClose}>Leave it</button>
      <${Act} tone="main" act=${act} done=${(done) => done && "It has this budget now."}>Set<//>
    </div>
  <//>`;
}

export const DIALOGS = { cancel: CancelDialog, retry: RetryDialog, fork: ForkDialog, settle: SettleDialog, signal: SignalDialog, budget: BudgetDialog };
