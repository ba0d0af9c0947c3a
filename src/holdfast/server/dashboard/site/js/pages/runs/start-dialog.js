// Starting a run: of what, with which inputs, and under which id.

import { html, useMemo, useState } from "../../html.js";
import { post } from "../../api.js";
import { useGet } from "../../data.js";
import { listed } from "../../form-controls.js";
import { Form, useForm } from "../../forms.js";
import { Act, Dialog, ProblemNote, toast, useClosing } from "../../components.js";
import { go } from "../../router.js";
import { fieldOf, fieldsOfInputs, fieldsOfNames, sentInputs } from "../../schema.js";

const JSON_FIELD = { ...fieldOf({ type: "object" }), label: "Inputs", hint: "An object, with a value for each parameter." };

export function StartDialog({ workflow = "", onClose }) {
  const { data, problem, again } = useGet("/v1/agents", {}, { live: false });
  const [chosen, setChosen] = useState(workflow);
  const known = data?.items ?? [];
  const one = known.find((other) => other.name === chosen);
  return html`<${Dialog} title="Start a run" onClose=${onClose}>
    <${ProblemNote} problem=${problem} again=${again} />
    ${data && !known.length ? html`<p>No worker has announced a workflow or an agent yet. One announces what it serves when it starts: <code>holdfast worker module</code>.</p>` : null}
    <label class="field">Workflow or agent
      <select value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
        <option value="">Choose one</option>
        ${known.map((other) => html`<option key=${other.name} value=${other.name}>${other.name}${other.is_agent ? " (agent)" : ""}</option>`)}
      </select>
    </label>
    ${one ? html`<${Inputs} key=${one.name} of=${one} onClose=${onClose} />` : html`<div class="does"><button onClick=${onClose}>Leave it</button></div>`}
  <//>`;
}

// By the schema that its workers announce. Where there is none, the names of its parameters are all that is known: each
// takes JSON, or else a text.
function Inputs({ of, onClose }) {
  const close = useClosing(onClose);
  const names = of.parameters ?? [];
  const schema = of.inputs_schema?.properties ? of.inputs_schema : null;
  const field = useMemo(() => (schema ? fieldsOfInputs(schema) : names.length ? fieldsOfNames(names) : JSON_FIELD), [of.name]);
  const form = useForm(null, schema || names.length ? undefined : {}, field);
  const [id, setId] = useState("");
  const [tags, setTags] = useState("");
  const start = async () => {
    const { ok, value } = form.read();
    if (!ok) throw new Error("Something does not fit yet: see above.");
    const body = { workflow: of.name, kwargs: sentInputs(value), tags: listed(tags) };
    const run = await post("/v1/runs", id.trim() ? { ...body, id: id.trim() } : body);
    toast(`Run ${run.id} was started.`, "good");
    if (close()) go("runs", run.id);
  };
  return html`<${Form} form=${form} />
    <label class="field">Id <input value=${id} onInput=${(event) => setId(event.target.value)} autocomplete="off" spellcheck=${false} />
      <span class="hint">May be left out. Starting one that is there joins it.</span></label>
    <label class="field">Tags <input value=${tags} onInput=${(event) => setTags(event.target.value)} autocomplete="off" />
      <span class="hint">Several are separated by commas.</span></label>
    ${of.state === "disabled" ? html`<div class="note warn">${of.name} is disabled: none of its runs start until it is enabled.</div>` : null}
    ${of.state !== "serving" && of.state !== "disabled" ? html`<div class="note warn">No live worker serves ${of.name}: the run waits until one does.</div>` : null}
    <div class="does"><button onClick=${onClose}>Leave it</button><${Act} tone="main" act=${start}>Start<//></div>`;
}
