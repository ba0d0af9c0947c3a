// A form for what a JSON schema describes.
//
//   const form = useForm(schema, value);            // or useForm(null, value, field) with a field of one's own
//   html`<${Form} form=${form} />`
//   const { ok, value } = form.read();              // what does not fit is then told at its field, and gets the focus

import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { asText } from "./format.js";
import { draftOf, faultAt, fieldOf, read } from "./schema.js";

export function useForm(schema, value, given) {
  const token = given ? null : JSON.stringify(schema);
  const field = useMemo(() => given ?? fieldOf(schema ?? {}), [given, token]);
  const [draft, setDraft] = useState(() => draftOf(field, value));
  const [asked, setAsked] = useState(0); // faults are told when somebody wants to send it, and from then on
  const known = useRef(field);
  const fresh = known.current === field ? draft : draftOf(field, value);
  useEffect(() => {
    if (known.current === field) return;
    known.current = field;
    setDraft(draftOf(field, value));
    setAsked(0);
  }, [field]);
  const told = read(field, fresh);
  return {
    field, draft: fresh, setDraft, asked,
    faults: asked ? told.faults : [],
    read() {
      setAsked((before) => before + 1);
      return { ok: !told.faults.length, value: told.value };
    },
  };
}

export function Form({ form, disabled = false }) {
  const place = useRef(null);
  useEffect(() => {
    if (form.asked) place.current?.querySelector('[aria-invalid="true"], [data-fault]')?.focus();
  }, [form.asked]);
  return html`<div class="form" ref=${place}>
    <${Field} field=${form.field} draft=${form.draft} path=${[]} faults=${form.faults} disabled=${disabled} onChange=${form.setDraft} />
  </div>`;
}

function Field(given) {
  const { field, path, faults } = given;
  const fault = faultAt(faults, path);
  if (field.kind === "object") return html`<${ObjectField} ...${given} fault=${fault} />`;
  if (field.kind === "list") return html`<${ListField} ...${given} fault=${fault} />`;
  if (field.kind === "boolean" && !field.open) {
    return html`<div class="field"><label class="line"><${Control} ...${given} fault=${fault} />${labelOf(field, path)}</label><${Below} field=${field} fault=${fault} /></div>`;
  }
  return html`<label class="field">
    <span>${labelOf(field, path)}${field.required || !path.length ? null : html` <span class="hint">may be left out</span>`}</span>
    <${Control} ...${given} fault=${fault} />
    <${Below} field=${field} fault=${fault} />
  </label>`;
}

const labelOf = (field, path) => field.label || (path.length ? (typeof path.at(-1) === "number" ? `no. ${path.at(-1) + 1}` : path.at(-1)) : "value");

const HINTS = { json: "As JSON.", any: "JSON, or else a text." };
function Below({ field, fault }) {
  const hint = [field.hint, HINTS[field.kind]].filter(Boolean).join(" ");
  return html`${hint ? html`<span class="hint">${hint}</span>` : null}${fault ? html`<span class="fault" role="alert">${fault}</span>` : null}`;
}

const INPUT_TYPES = { date: "date", email: "email", uri: "url", url: "url" };
function Control({ field, draft, onChange, fault, disabled }) {
  const common = { disabled, "aria-required": field.required ? "true" : undefined, "aria-invalid": fault ? "true" : undefined, class: fault ? "invalid" : "" };
  const type = (event) => onChange(event.target.value);
  switch (field.kind) {
    case "text":
      return field.long
        ? html`<textarea ...${common} class="prose ${common.class}" rows="2" value=${draft} onInput=${type}></textarea>`
        : html`<input ...${common} type=${INPUT_TYPES[field.format] ?? "text"} value=${draft} onInput=${type} />`;
    case "number":
      return html`<input ...${common} inputmode=${field.whole ? "numeric" : "decimal"} value=${draft} onInput=${type} />`;
    case "boolean":
      return field.open
        ? html`<select ...${common} value=${draft === null ? "" : String(draft)} onChange=${(event) => onChange(event.target.value === "" ? null : event.target.value === "true")}>
            <option value="">–</option><option value="true">yes</option><option value="false">no</option>
          </select>`
        : html`<input ...${common} type="checkbox" checked=${draft} onChange=${(event) => onChange(event.target.checked)} />`;
    case "choice":
      return html`<select ...${common} value=${draft} onChange=${type}>
        <option value="">–</option>
        ${field.choices.map((one, index) => html`<option key=${index} value=${String(index)}>${asText(one)}</option>`)}
      </select>`;
    case "any":
      return html`<input ...${common} value=${draft} onInput=${type} spellcheck=${false} autocomplete="off" />`;
    default:
      return html`<textarea ...${common} value=${draft} onInput=${type} spellcheck=${false}></textarea>`;
  }
}

function ObjectField({ field, draft, path, faults, fault, disabled, onChange }) {
  const change = (name) => (inner) => onChange({ given: true, fields: { ...draft.fields, [name]: inner } });
  const inside = draft.given
    ? field.fields.map(([name, inner]) => html`<${Field} key=${name} field=${inner} draft=${draft.fields[name]} path=${[...path, name]} faults=${faults} disabled=${disabled} onChange=${change(name)} />`)
    : null;
  if (!path.length) return html`<div>${inside}<${Below} field=${field} fault=${fault} /></div>`;
  return html`<fieldset class="group" disabled=${disabled}>
    <legend>${labelOf(field, path)}</legend>
    <${Below} field=${field} fault=${fault} />
    ${field.optional ? html`<label class="line"><input type="checkbox" checked=${draft.given} onChange=${(event) => onChange({ ...draft, given: event.target.checked })} />fill it in</label>` : null}
    ${inside}
  </fieldset>`;
}

function ListField({ field, draft, path, faults, fault, disabled, onChange }) {
  const change = (index) => (inner) => onChange(draft.map((one, at) => (at === index ? inner : one)));
  return html`<fieldset class="group" disabled=${disabled} data-fault=${fault || undefined} tabindex=${fault ? "-1" : undefined}>
    <legend>${labelOf(field, path)}</legend>
    <${Below} field=${field} fault=${fault} />
    ${draft.map((one, index) => html`<div class="item" key=${index}>
      <${Field} field=${field.item} draft=${one} path=${[...path, index]} faults=${faults} disabled=${disabled} onChange=${change(index)} />
      <button type="button" aria-label="take out no. ${index + 1}" onClick=${() => onChange(draft.filter((_, at) => at !== index))}>✕</button>
    </div>`)}
    <button type="button" onClick=${() => onChange([...draft, draftOf(field.item)])}>Add one</button>
  </fieldset>`;
}
