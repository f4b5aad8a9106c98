// Asking the server: JSON, streams of events, and a small memory of what was asked before.

const KEY = "qkv-key";
const REMEMBERED = 60;
const TRIES = 4;
const memory = new Map();

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

async function reply(path, body, signal) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, {
        method: body ? "POST" : "GET",
        headers,
        body: body && JSON.stringify(body),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "The server does not answer. Is it still running?");
    }
    if (response.ok) return response;
    const wait = Number(response.headers.get("Retry-After")) || 0;
    if (response.status === 503 && attempt < TRIES) {
      await new Promise((done) => setTimeout(done, 1000 * Math.min(wait || 1, 5)));
      continue;
    }
    throw new Refused(response.status, await why(response));
  }
}

async function why(response) {
  try {
    const { error } = await response.json();
    return error.message ?? error;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** One question, one answer. */
export async function ask(path, body = null, signal = undefined) {
  return (await reply(path, body, signal)).json();
}

/** The same question is asked once: answers about a model never change while it is loaded. */
export function look(what, body) {
  const name = what + JSON.stringify(body);
  const known = memory.get(name);
  memory.delete(name);
  const found =
    known ??
    ask(`/api/look/${what}`, body).catch((error) => {
      memory.delete(name);
      throw error;
    });
  memory.set(name, found); // the newest last
  if (memory.size > REMEMBERED) memory.delete(memory.keys().next().value);
  return found;
}

/** Server-sent events, one after the other. */
export async function* stream(path, body, signal) {
  const response = await reply(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Refused(0, event.error.message ?? event.error);
      yield event;
    }
  }
}
