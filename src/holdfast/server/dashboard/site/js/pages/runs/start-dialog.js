// The dialog that starts a run: its workflow, its inputs, and its id.

import { html, useMemo, useState } from "../../html.js";
import { post } from "../../api.js";
import { ActionButton, Dialog, ProblemNote, showToast, useClose } from "../../components.js";
import { useGet } from "../../data.js";
import { splitList } from "../../form-controls.js";
import { Form, useForm } from "../../forms.js";
import { navigate } from "../../router.js";
import { buildField, buildFieldsFromNames, buildFieldsFromSchema, flattenInputs } from "../../schema.js";

const JSON_FIELD = { ...buildField({ type: "object" }), label: "Inputs", hint: "An object, with a value for each parameter." };

export function StartDialog({ workflow = "", onClose }) {
  const { data, problem, refresh } = useGet("/v1/agents", {}, { live: false });
  const [chosenName, setChosenName] = useState(workflow);
  const agents = data?.items ?? [];
  const one = agents.find((other) => other.name === chosenName);
  return html`<${Dialog} title="Start a run" onClose=${onClose}>
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    ${data && !agents.length ? html`<p>No worker has announced a workflow or an agent yet. One announces what it serves when it starts: <code>holdfast worker module</code>.</p>` : null}
    <label class="field">Workflow or agent
      <select value=${chosenName} onChange=${(event) => setChosenName(event.target.value)}>
        <option value="">Choose one</option>
        ${agents.map((other) => html`<option key=${other.name} value=${other.name}>${other.name}${other.is_agent ? " (agent)" : ""}</option>`)}
      </select>
    </label>
    ${one ? html`<${StartForm} key=${one.name} agent=${one} onClose=${onClose} />` : html`<div class="does"><button onClick=${onClose}>Leave it</button></div>`}
  <//>`;
}

// Fields by the schema that the workflow's workers announce. Without a schema, only the names of its parameters are
// known: each takes JSON, or else text.
function StartForm({ agent, onClose }) {
  const close = useClose(onClose);
  const names = agent.parameters ?? [];
  const schema = agent.inputs_schema?.properties ? agent.inputs_schema : null;
  const field = useMemo(() => (schema ? buildFieldsFromSchema(schema) : names.length ? buildFieldsFromNames(names) : JSON_FIELD), [agent.name]);
  const form = useForm(null, schema || names.length ? undefined : {}, field);
  const [id, setId] = useState("");
  const [tags, setTags] = useState("");
  const start = async () => {
    const { ok, value } = form.read();
    if (!ok) throw new Error("Something does not fit yet: see above.");
    const body = { workflow: agent.name, kwargs: flattenInputs(value), tags: splitList(tags) };
    const run = await post("/v1/runs", id.trim() ? { ...body, id: id.trim() } : body);
    showToast(`Run ${run.id} was started.`, "good");
    if (close()) navigate("runs", run.id);
  };
  return html`<${Form} form=${form} />
    <label class="field">Id <input value=${id} onInput=${(event) => setId(event.target.value)} autocomplete="off" spellcheck=${false} />
      <span class="hint">May be left out. Starting one that is there joins it.</span></label>
    <label class="field">Tags <input value=${tags} onInput=${(event) => setTags(event.target.value)} autocomplete="off" />
      <span class="hint">Several are separated by commas.</span></label>
    ${agent.state === "disabled" ? html`<div class="note warn">${agent.name} is disabled: none of its runs start until it is enabled.</div>` : null}
    ${agent.state !== "serving" && agent.state !== "disabled" ? html`<div class="note warn">No live worker serves ${agent.name}: the run waits until one does.</div>` : null}
    <div class="does"><button onClick=${onClose}>Leave it</button><${ActionButton} tone="main" action=${start}>Start<//></div>`;
}
