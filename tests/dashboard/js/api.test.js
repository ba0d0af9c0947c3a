import assert from "node:assert/strict";
import test from "node:test";
import { get, getPages, isRefused, key, post } from "../../../src/holdfast/server/dashboard/site/js/api.js";

const kept = new Map();
globalThis.sessionStorage = { getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => kept.set(name, value), removeItem: (name) => kept.delete(name) };

const answers = (status, told = {}) => {
  globalThis.fetch = async () => new Response(JSON.stringify(told), { status });
};

test("a question that nobody heard is asked again, and a wish may have been heard all the same", async () => {
  globalThis.fetch = async () => {
    throw new TypeError("fetch failed");
  };
  await assert.rejects(get("/v1/runs"), /It is asked again/);
  await assert.rejects(post("/v1/runs/a/cancel"), /look whether it was done/);
});

test("a key is refused by a 401 alone, and taken again by an answer", async () => {
  answers(401);
  await assert.rejects(get("/v1/whoami"));
  assert.equal(isRefused(), true);
  for (const status of [429, 503]) {
    answers(status);
    await assert.rejects(get("/v1/whoami"));
    assert.equal(isRefused(), true, `${status} says nothing of the key`);
  }
  answers(200);
  await get("/v1/whoami");
  assert.equal(isRefused(), false);
});

test("an answer to a key that is not used any more says nothing about the one that is", async () => {
  let answer;
  globalThis.fetch = () => new Promise((done) => (answer = done));
  const late = get("/v1/keys");
  key.set("hf_new");
  answer(new Response("{}", { status: 401 }));
  await assert.rejects(late);
  assert.equal(isRefused(), false);
});

test("pages are read one behind the other, and no more of them than there are", async () => {
  const asked = [];
  globalThis.fetch = async (path) => {
    asked.push(path);
    return new Response(JSON.stringify(path.includes("cursor=2") ? { items: [3], next: null } : { items: [1, 2], next: "2" }));
  };
  assert.deepEqual(await getPages("/v1/dead-runs", { limit: 2 }, 1), { items: [1, 2], next: "2" });
  assert.deepEqual(await getPages("/v1/dead-runs", { limit: 2 }, 9), { items: [1, 2, 3], next: null });
  assert.deepEqual(asked, ["/v1/dead-runs?limit=2", "/v1/dead-runs?limit=2", "/v1/dead-runs?limit=2&cursor=2"]);
});
