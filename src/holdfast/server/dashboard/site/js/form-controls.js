// Forms that are written by hand: fields that tell what is wrong with them, and a way to send them one time at a time.

import { html, useState } from "./html.js";

// A label, what is typed, and below it what is wrong with that, or a hint. Whatever else is given is the input's own.
export function TextInput({ label, error, hint, onChange, isLong = false, ...more }) {
  const common = { ...more, class: error ? "invalid" : "", "aria-invalid": error ? "true" : undefined, onInput: (event) => onChange(event.target.value) };
  return html`<label class="field">${label}${isLong ? html`<textarea ...${common}></textarea>` : html`<input ...${common} />`}${
    error ? html`<span class="fault" role="alert">${error}</span>` : hint ? html`<span class="hint">${hint}</span>` : null}</label>`;
}

// { faults, problem, busy, onSubmit }, for a form.
//   check: () => { [name]: what is wrong with that field }; nothing is sent unless that is empty
//   send: async () => what sends it, and closes the dialog; of what the server refuses, the fields are told as well
export function useSubmit(check, send) {
  const [status, setStatus] = useState({ errors: {}, problem: null, isBusy: false });
  const onSubmit = async (event) => {
    event.preventDefault();
    if (status.isBusy) return;
    const errors = check();
    const isValid = !Object.keys(errors).length;
    setStatus({ errors, problem: null, isBusy: isValid });
    if (!isValid) return;
    try {
      await send();
      setStatus({ errors: {}, problem: null, isBusy: false });
    } catch (problem) {
      const fieldErrors = (problem.details?.violations ?? []).map(({ path, message }) => [path.split(".")[0], message]);
      setStatus({ errors: Object.fromEntries(fieldErrors), problem, isBusy: false });
    }
  };
  return { ...status, onSubmit };
}

export const isPositiveInteger = (text) => /^[1-9]\d*$/.test(text.trim());

// "a, b" as ["a", "b"].
export const splitList = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
