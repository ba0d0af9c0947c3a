// Fields from JSON schemas, and values from what was typed into them.

import assert from "node:assert/strict";
import test from "node:test";
import { buildDraft, buildField, buildFieldsFromNames, buildFieldsFromSchema, findViolationMessage, flattenInputs, readDraft } from "../../../src/holdfast/server/dashboard/site/js/schema.js";

const readTyped = (schema, draft) => readDraft(buildField(schema), draft);
const roundTrip = (schema, value) => readDraft(buildField(schema), buildDraft(buildField(schema), value));
const object = (properties, required = []) => ({ type: "object", properties, required });

test("a value in a form comes out of it unchanged", () => {
  const schema = object(
    {
      name: { type: "string" }, amount: { type: "number" }, tries: { type: "integer" }, sure: { type: "boolean" },
      size: { enum: ["S", "M", 3, null] }, tags: { type: "array", items: { type: "string" } },
      address: object({ street: { type: "string" } }, ["street"]), rest: { type: "object", additionalProperties: true }, anything: {},
    },
    ["name", "amount"],
  );
  const value = {
    name: "", amount: 1.5, tries: 0, sure: false, size: 3, tags: ["a", ""], address: { street: "x" }, rest: { a: [1, null] }, anything: "12",
  };
  assert.deepEqual(roundTrip(schema, value), { value, violations: [] });
  assert.deepEqual(roundTrip(schema, { name: "A", amount: 2 }).value, { name: "A", amount: 2 });
});

test("violations have the path of their field", () => {
  const schema = object({ lines: { type: "array", items: object({ amount: { type: "integer", minimum: 1 } }, ["amount"]) } }, ["lines"]);
  const field = buildField(schema);
  const draft = { isIncluded: true, fields: { lines: [{ isIncluded: true, fields: { amount: "0" } }, { isIncluded: true, fields: { amount: "" } }] } };
  const { value, violations } = readDraft(field, draft);
  assert.equal(value, undefined);
  assert.equal(findViolationMessage(violations, ["lines", 0, "amount"]), "At least 1.");
  assert.equal(findViolationMessage(violations, ["lines", 1, "amount"]), "A number must stand here.");
  assert.equal(findViolationMessage(violations, ["lines"]), "");
});

test("numbers are read as JSON has them, and never rounded", () => {
  const words = (text, schema = { type: "integer" }) => readTyped(schema, text).violations[0]?.message ?? readTyped(schema, text).value;
  assert.equal(words("12"), 12);
  assert.equal(words(" 1e3 "), 1000);
  assert.match(words("0x10"), /no number/);
  assert.match(words("1.5"), /whole/);
  assert.match(words("9007199254740993"), /too large/);
  assert.match(words("5", { type: "number", exclusiveMaximum: 5 }), /Less than 5/);
});

test("references, optional types, and single alternatives are resolved", () => {
  const schema = {
    $defs: { Size: { enum: ["S", "M"], title: "Size" } },
    ...object({ size: { $ref: "#/$defs/Size" }, note: { anyOf: [{ type: "string" }, { type: "null" }], default: null }, more: { allOf: [{ $ref: "#/$defs/Size" }] } }, ["size"]),
  };
  const kinds = Object.fromEntries(buildField(schema).fields.map(([name, one]) => [name, one.kind]));
  assert.deepEqual(kinds, { size: "choice", note: "text", more: "choice" });
  assert.deepEqual(roundTrip(schema, { size: "M" }).value, { size: "M", note: null });
});

test("what no field fits is written as JSON, and checked", () => {
  const schema = { anyOf: [{ type: "string" }, { type: "integer" }] };
  assert.equal(buildField(schema).kind, "json");
  assert.deepEqual(readTyped(schema, "[1").value, undefined);
  assert.match(readTyped(schema, "[1").violations[0].message, /no JSON/);
  assert.equal(readTyped(schema, '"a"').value, "a");
  const endless = { $defs: { Node: object({ next: { $ref: "#/$defs/Node" } }, ["next"]) }, $ref: "#/$defs/Node" };
  let at = buildField(endless);
  for (let depth = 0; at.kind === "object"; depth++, at = at.fields[0][1]) assert.ok(depth < 20);
  assert.equal(at.kind, "json");
  assert.equal(buildField({ $ref: "#/$defs/Gone" }).kind, "json");
  assert.equal(buildField({ $ref: "https://elsewhere.example/schema" }).kind, "json");
});

test("an optional group is left out until somebody fills it in", () => {
  const schema = object({ address: object({ street: { type: "string", minLength: 1 } }, ["street"]) });
  const field = buildField(schema);
  assert.deepEqual(readDraft(field, buildDraft(field)), { value: {}, violations: [] });
  const draft = buildDraft(field);
  draft.fields.address.isIncluded = true;
  assert.equal(findViolationMessage(readDraft(field, draft).violations, ["address", "street"]), "Something must stand here.");
});

test("a text with a default can be emptied, and a switch may be left open", () => {
  const schema = object({ greeting: { type: "string", default: "Hello" }, loud: { type: "boolean" } });
  const field = buildField(schema);
  const draft = buildDraft(field);
  assert.equal(draft.fields.greeting, "Hello");
  assert.equal(draft.fields.loud, null);
  draft.fields.greeting = "";
  assert.deepEqual(readDraft(field, draft).value, { greeting: "" });
});

test("parameters of which only the names are known take JSON or else a text", () => {
  const field = buildFieldsFromNames(["a", "b", "c", "d"]);
  const draft = { isIncluded: true, fields: { a: "hello there", b: "[1, 2]", c: '"7"', d: "" } };
  assert.deepEqual(readDraft(field, draft).value, { a: "hello there", b: [1, 2], c: "7" });
});

test("the inputs of a workflow are asked for by their types, and those that must be there say so", () => {
  const schema = {
    type: "object", required: ["customer", "cents", "line", "prompt"],
    properties: {
      customer: { type: "string" }, cents: { type: "integer" }, line: { $ref: "#/$defs/line.Line" }, prompt: { anyOf: [{ type: "string" }, { type: "array", items: {} }] },
      note: { type: "string" }, "*rest": { type: "array", items: {} }, "**more": { type: "object", additionalProperties: { type: "number" } },
    },
    $defs: { "line.Line": { type: "object", title: "Line", properties: { sku: { type: "string" } }, required: ["sku"] } },
  };
  const field = buildFieldsFromSchema(schema);
  assert.deepEqual(field.fields.map(([name, one]) => [name, one.label, one.kind, one.required]), [
    ["customer", "customer", "text", true], ["cents", "cents", "number", true], ["line", "line", "object", true], ["prompt", "prompt", "any", true],
    ["note", "note", "text", false], ["**more", "**more", "json", false],
  ]);
  const draft = buildDraft(field);
  assert.deepEqual(readDraft(field, draft).violations.map((one) => one.path.join(".")), ["customer", "cents", "prompt"]);
  Object.assign(draft.fields, { customer: "acme", cents: "lots", prompt: "what is it?", "**more": '{"speed": 2}' });
  draft.fields.line.fields.sku = "abc";
  assert.deepEqual(readDraft(field, draft).violations.map((one) => one.path.join(".")), ["cents"]);
  draft.fields.cents = "500";
  const { value } = readDraft(field, draft);
  assert.deepEqual(flattenInputs(value), { customer: "acme", cents: 500, line: { sku: "abc" }, prompt: "what is it?", speed: 2 });
});
