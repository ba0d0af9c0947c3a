// A form for what a JSON schema describes.
//
//   const form = useForm(schema, value);            // or useForm(null, value, field) with a custom field
//   html`<${Form} form=${form} />`
//   const { ok, value } = form.read();              // shows violations at their fields, and focuses the first

import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { formatValue } from "./format.js";
import { buildDraft, buildField, findViolationMessage, readDraft } from "./schema.js";

export function useForm(schema, value, customField) {
  const token = customField ? null : JSON.stringify(schema);
  const field = useMemo(() => customField ?? buildField(schema ?? {}), [customField, token]);
  const [draft, setDraft] = useState(() => buildDraft(field, value));
  const [submitCount, setSubmitCount] = useState(0); // violations are shown from the first attempt to submit on
  const lastField = useRef(field);
  const currentDraft = lastField.current === field ? draft : buildDraft(field, value);
  useEffect(() => {
    if (lastField.current === field) return;
    lastField.current = field;
    setDraft(buildDraft(field, value));
    setSubmitCount(0);
  }, [field]);
  const result = readDraft(field, currentDraft);
  return {
    field, draft: currentDraft, setDraft, submitCount,
    violations: submitCount ? result.violations : [],
    read() {
      setSubmitCount((before) => before + 1);
      return { ok: !result.violations.length, value: result.value };
    },
  };
}

export function Form({ form, disabled = false }) {
  const element = useRef(null);
  useEffect(() => {
    if (form.submitCount) element.current?.querySelector('[aria-invalid="true"], [data-fault]')?.focus();
  }, [form.submitCount]);
  return html`<div class="form" ref=${element}>
    <${Field} field=${form.field} draft=${form.draft} path=${[]} violations=${form.violations} disabled=${disabled} onChange=${form.setDraft} />
  </div>`;
}

function Field(props) {
  const { field, path, violations } = props;
  const error = findViolationMessage(violations, path);
  if (field.kind === "object") return html`<${ObjectField} ...${props} error=${error} />`;
  if (field.kind === "list") return html`<${ListField} ...${props} error=${error} />`;
  if (field.kind === "boolean" && !field.isOpen) {
    return html`<div class="field"><label class="line"><${Control} ...${props} error=${error} />${formatLabel(field, path)}</label><${FieldNotes} field=${field} error=${error} /></div>`;
  }
  return html`<label class="field">
    <span>${formatLabel(field, path)}${field.required || !path.length ? null : html` <span class="hint">may be left out</span>`}</span>
    <${Control} ...${props} error=${error} />
    <${FieldNotes} field=${field} error=${error} />
  </label>`;
}

const formatLabel = (field, path) => field.label || (path.length ? (typeof path.at(-1) === "number" ? `no. ${path.at(-1) + 1}` : path.at(-1)) : "value");

const HINTS = { json: "As JSON.", any: "JSON, or else a text." };
function FieldNotes({ field, error }) {
  const hint = [field.hint, HINTS[field.kind]].filter(Boolean).join(" ");
  return html`${hint ? html`<span class="hint">${hint}</span>` : null}${error ? html`<span class="fault" role="alert">${error}</span>` : null}`;
}

const INPUT_TYPES = { date: "date", email: "email", uri: "url", url: "url" };
function Control({ field, draft, onChange, error, disabled }) {
  const common = { disabled, "aria-required": field.required ? "true" : undefined, "aria-invalid": error ? "true" : undefined, class: error ? "invalid" : "" };
  const onType = (event) => onChange(event.target.value);
  switch (field.kind) {
    case "text":
      return field.isLong
        ? html`<textarea ...${common} class="prose ${common.class}" rows="2" value=${draft} onInput=${onType}></textarea>`
        : html`<input ...${common} type=${INPUT_TYPES[field.format] ?? "text"} value=${draft} onInput=${onType} />`;
    case "number":
      return html`<input ...${common} inputmode=${field.isInteger ? "numeric" : "decimal"} value=${draft} onInput=${onType} />`;
    case "boolean":
      return field.isOpen
        ? html`<select ...${common} value=${draft === null ? "" : String(draft)} onChange=${(event) => onChange(event.target.value === "" ? null : event.target.value === "true")}>
            <option value="">–</option><option value="true">yes</option><option value="false">no</option>
          </select>`
        : html`<input ...${common} type="checkbox" checked=${draft} onChange=${(event) => onChange(event.target.checked)} />`;
    case "choice":
      return html`<select ...${common} value=${draft} onChange=${onType}>
        <option value="">–</option>
        ${field.choices.map((one, index) => html`<option key=${index} value=${String(index)}>${formatValue(one)}</option>`)}
      </select>`;
    case "any":
      return html`<input ...${common} value=${draft} onInput=${onType} spellcheck=${false} autocomplete="off" />`;
    default:
      return html`<textarea ...${common} value=${draft} onInput=${onType} spellcheck=${false}></textarea>`;
  }
}

function ObjectField({ field, draft, path, violations, error, disabled, onChange }) {
  const change = (name) => (inner) => onChange({ isIncluded: true, fields: { ...draft.fields, [name]: inner } });
  const children = draft.isIncluded
    ? field.fields.map(([name, inner]) => html`<${Field} key=${name} field=${inner} draft=${draft.fields[name]} path=${[...path, name]} violations=${violations} disabled=${disabled} onChange=${change(name)} />`)
    : null;
  if (!path.length) return html`<div>${children}<${FieldNotes} field=${field} error=${error} /></div>`;
  return html`<fieldset class="group" disabled=${disabled}>
    <legend>${formatLabel(field, path)}</legend>
    <${FieldNotes} field=${field} error=${error} />
    ${field.optional ? html`<label class="line"><input type="checkbox" checked=${draft.isIncluded} onChange=${(event) => onChange({ ...draft, isIncluded: event.target.checked })} />fill it in</label>` : null}
    ${children}
  </fieldset>`;
}

function ListField({ field, draft, path, violations, error, disabled, onChange }) {
  const change = (index) => (inner) => onChange(draft.map((one, at) => (at === index ? inner : one)));
  return html`<fieldset class="group" disabled=${disabled} data-fault=${error || undefined} tabindex=${error ? "-1" : undefined}>
    <legend>${formatLabel(field, path)}</legend>
    <${FieldNotes} field=${field} error=${error} />
    ${draft.map((one, index) => html`<div class="item" key=${index}>
      <${Field} field=${field.item} draft=${one} path=${[...path, index]} violations=${violations} disabled=${disabled} onChange=${change(index)} />
      <button type="button" aria-label="take out no. ${index + 1}" onClick=${() => onChange(draft.filter((_, at) => at !== index))}>✕</button>
    </div>`)}
    <button type="button" onClick=${() => onChange([...draft, buildDraft(field.item)])}>Add one</button>
  </fieldset>`;
}
