// An agent in plain Node.js (18 or newer), without a library: it listens on an address of a Holdfast server, and can be
// killed at any time. Whoever is started next goes on at the step where it stopped.
//
//   HOLDFAST_URL      the server, http://127.0.0.1:7100 unless given
//   HOLDFAST_API_KEY  a key with the scope listen:orders, if the server wants one
//   LEDGER            the file that stands for the world: every effect is a line in it
//   PACE              seconds that a step takes behind its effect, so that there is time to kill the process

import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const url = (process.env.HOLDFAST_URL ?? "http://127.0.0.1:7100").replace(/\/$/, "");
const key = process.env.HOLDFAST_API_KEY;
const ledger = process.env.LEDGER ?? "effects.log";
const pace = 1000 * Number(process.env.PACE ?? 1);
const address = process.argv[2] ?? "orders";
const headers = { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };

// ---- What this agent does: reserve, charge, confirm. Each effect is a line in the ledger.

async function order(delivery) {
  const { order } = delivery.payload;
  const reserved = await delivery.step("reserve", () => effect(delivery, "reserve", `${order} is reserved`));
  // Nobody may be charged twice. If a process has died over it, we look whether it has happened.
  const charged = await delivery.stepOnce(
    "charge",
    () => effect(delivery, "charge", `${order} is paid`),
    () => (happened(delivery, "charge") ? `${order} is paid` : effect(delivery, "charge", `${order} is paid`)),
  );
  const confirmed = await delivery.step("confirm", () => effect(delivery, "confirm", `${order} is confirmed`));
  return [reserved, charged, confirmed];
}

async function effect(delivery, step, outcome) {
  appendFileSync(ledger, `${delivery.runId} ${step} node-${process.pid}\n`);
  await sleep(pace);
  return outcome;
}

function happened(delivery, step) {
  return existsSync(ledger) && readFileSync(ledger, "utf8").includes(`${delivery.runId} ${step} `);
}

// ---- What every agent needs: a delivery, with the steps that are recorded of it.

class Lost extends Error {} // somebody else has the run now, or it was cancelled: stop working on it
class Refused extends Error {} // the server will not do that, however often it is asked

class Delivery {
  constructor(told) {
    this.id = told.id;
    this.runId = told.run_id;
    this.payload = told.payload;
    this.number = told.number;
    this.steps = new Map(told.steps.map((step) => [step.name, step.output]));
    this.inFlight = new Set(told.in_flight.filter((step) => step.once).map((step) => step.name));
    this.stopped = new AbortController();
  }

  // What is recorded is not done again. What is not recorded is done, recorded, and only then gone on from.
  async step(name, work) {
    if (!this.steps.has(name)) {
      this.stopped.signal.throwIfAborted();
      const output = await work();
      const answer = await this.post("steps", { name, output });
      this.steps.set(name, answer.output); // the first outcome that was recorded under this name counts
    }
    return this.steps.get(name);
  }

  // A step that must not happen twice says that it begins. The next process is told, if this one dies over it.
  async stepOnce(name, work, workAfterDeath) {
    const mayHaveHappened = this.inFlight.has(name);
    if (!this.steps.has(name)) await this.post("attempts", { name, once: true });
    return this.step(name, mayHaveHappened ? workAfterDeath : work);
  }

  post(what, body = {}) {
    return post(`/v1/deliveries/${this.id}/${what}`, body);
  }
}

async function handle(delivery) {
  console.log(`run ${delivery.runId}, delivery ${delivery.number}: ${delivery.steps.size} steps are done`);
  // A listener whose connection breaks is waited for only for a few seconds: so a sign of life every second.
  const heart = setInterval(() => {
    delivery.post("heartbeat").catch((error) => error instanceof Lost && delivery.stopped.abort(error));
  }, 1000);
  try {
    await delivery.post("complete", { output: await order(delivery) });
    console.log(`run ${delivery.runId} is done`);
  } catch (error) {
    if (error instanceof Lost) console.log(`run ${delivery.runId}: ${error.message}`);
    else await delivery.post("fail", { error: { type: error.name, message: error.message } }).catch(console.error);
  } finally {
    clearInterval(heart);
  }
}

// ---- HTTP: requests that are repeated while the server is away, and a stream that is opened again when it breaks.

async function post(path, body) {
  for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
    const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
    if (answer?.ok) return answer.status === 204 ? null : answer.json();
    if (answer && ![429, 502, 503, 504].includes(answer.status)) {
      const problem = await answer.json().catch(() => ({}));
      const isOver = ["delivery-lost", "delivery-not-found"].includes(problem.type);
      throw new (isOver ? Lost : Refused)(problem.detail ?? `${path}: status ${answer.status}`);
    }
    await sleep(pause * (0.5 + Math.random() / 2));
  }
}

async function* deliveries(name) {
  let listener = ""; // who we are: as long as this process lives, it keeps what it holds
  for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
    const query = new URLSearchParams({ name: `node ${process.pid}`, ...(listener && { listener_id: listener }) });
    try {
      const answer = await fetch(`${url}/v1/addresses/${encodeURIComponent(name)}/listen?${query}`, { headers });
      if ([401, 403].includes(answer.status)) throw new Refused(await answer.text());
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      for await (const [event, data] of events(answer.body)) {
        if (event === "listener") [listener, pause] = [data.listener_id, 100];
        if (event === "delivery") yield new Delivery(data);
      }
    } catch (error) {
      if (error instanceof Refused) throw error;
      console.error(`the server is away (${error.message}), trying again`);
    }
    await sleep(pause * (0.5 + Math.random() / 2));
  }
}

async function* events(body) {
  let [rest, event, data] = ["", "", ""];
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
      else if (line === "" && data) {
        yield [event, JSON.parse(data)];
        [event, data] = ["", ""];
      }
    }
  }
}

console.log(`listening on ${address} at ${url}`);
for await (const delivery of deliveries(address)) await handle(delivery);
