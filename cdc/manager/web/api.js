// Requests to the REST API of the same host.

export class ApiError extends Error {
  constructor(status, body) {
    super(body.error ?? `The host replied ${status}.`);
    this.status = status;
    this.where = body.where ?? "";
    this.hint = body.hint ?? "";
  }
}

export const TABLES = 100; // on one page

const job = (name) => `/v1/jobs/${encodeURIComponent(name)}`;

export async function call(method, path, body) {
  const options = { method, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, data);
  return data;
}

export const read = {
  session: () => call("GET", "/v1/session"),
  jobs: () => call("GET", "/v1/jobs"),
  hosts: () => call("GET", "/v1/hosts"),
  job: (name, { match, offset }) => call("GET", `${job(name)}?tables=${TABLES}&offset=${offset}&match=${encodeURIComponent(match)}`),
  history: (name, minutes) => call("GET", `${job(name)}/history?minutes=${minutes}`),
  events: (name, before) => call("GET", `${job(name)}/events${before ? `?before=${before}` : ""}`),
  checkpoints: (name) => call("GET", `${job(name)}/checkpoints`),
  verifications: (name) => call("GET", `${job(name)}/verifications`),
  log: (name) => call("GET", `${job(name)}/logs?lines=300`),
};

// Send a request to a job, wait up to 30 s for its result, and return the result; null: there is none yet.
export async function act(name, verb, body) {
  const answer = await call("POST", `${job(name)}/${verb}`, body);
  const { event } = answer;
  if (event === undefined) return answer; // carried out already
  for (let tries = 0; tries < 60; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, tries < 4 ? 250 : 500));
    const { result } = await call("GET", `${job(name)}/events/${event}`);
    if (result) {
      if (!result.ok) throw new ApiError(409, result.error ?? {});
      return result;
    }
  }
  return null;
}
