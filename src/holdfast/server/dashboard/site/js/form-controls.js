// Controls for hand-written forms: inputs with their errors, and a submit handler that sends one request at a time.

import { html, useState } from "./html.js";

// A label and an input, with an error or a hint below it. All other props go to the input.
export function TextInput({ label, error, hint, onChange, isLong = false, ...more }) {
  const common = { ...more, class: error ? "invalid" : "", "aria-invalid": error ? "true" : undefined, onInput: (event) => onChange(event.target.value) };
  return html`<label class="field">${label}${isLong ? html`<textarea ...${common}></textarea>` : html`<input ...${common} />`}${
    error ? html`<span class="fault" role="alert">${error}</span>` : hint ? html`<span class="hint">${hint}</span>` : null}</label>`;
}

// { errors, problem, isBusy, onSubmit }, for a form.
//   check: () => { [name]: the error of that field }; the form is only sent if there are none
//   send: async () => sends the form and closes the dialog; the server's violations become errors of their fields
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
