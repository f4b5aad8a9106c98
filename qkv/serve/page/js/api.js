// HTTP client: JSON requests, server-sent events, and a cache of inspection results.

const KEY = "qkv-key";
const CACHE_SIZE = 60;
const ATTEMPTS = 4;
const cache = new Map();

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

/** Send a request; retry while the server is overloaded (503). */
async function send(path, body, signal) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (apiKey.get()) headers.Authorization = `Bearer ${apiKey.get()}`;
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
      throw new ApiError(0, "No response from the server. Check that it is running.");
    }
    if (response.ok) return response;
    const seconds = Number(response.headers.get("Retry-After")) || 0;
    if (response.status === 503 && attempt < ATTEMPTS) {
      await new Promise((done) => setTimeout(done, 1000 * Math.min(seconds || 1, 5)));
      continue;
    }
    throw new ApiError(response.status, await readError(response));
  }
}

async function readError(response) {
  try {
    const { error } = await response.json();
    return error.message ?? error;
  } catch {
    return `The server returned HTTP status ${response.status}.`;
  }
}

/** GET (without a body) or POST JSON and return the JSON response. */
export async function request(path, body = null, signal = undefined) {
  return (await send(path, body, signal)).json();
}

/** POST to /api/look/<name>, cached: a loaded model always gives the same result for the same input. */
export function inspect(name, body) {
  const id = name + JSON.stringify(body);
  const cached = cache.get(id);
  cache.delete(id);
  const result =
    cached ??
    request(`/api/look/${name}`, body).catch((error) => {
      cache.delete(id);
      throw error;
    });
  cache.set(id, result); // the most recent entry is last
  if (cache.size > CACHE_SIZE) cache.delete(cache.keys().next().value);
  return result;
}

/** POST with stream: true and yield the server-sent events. */
export async function* streamEvents(path, body, signal) {
  const response = await send(path, { ...body, stream: true }, signal);
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
      if (event.error) throw new ApiError(0, event.error.message ?? event.error);
      yield event;
    }
  }
}
