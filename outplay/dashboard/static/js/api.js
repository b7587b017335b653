// Requests to the server. Addresses are relative, so that a proxy may put the dashboard under a path.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const isAborted = (error) => error?.name === "AbortError";

function address(path, params) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params ?? {})) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined) query.append(key, each);
    }
  }
  const text = query.toString();
  return `api/${path}${text ? `?${text}` : ""}`;
}

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (isAborted(error)) throw error;
    throw new ApiError("The dashboard's server does not answer. Is `outplay dashboard` still running?", 0);
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(body?.error ?? `The server answered with status ${response.status}.`, response.status);
  return body;
}

export function get(path, params, signal) {
  return answer(fetch(address(path, params), { signal, headers: { Accept: "application/json" } }));
}

export function post(path, body) {
  return answer(
    fetch(address(path), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
  );
}

export const videoAddress = (run, name) => address("video", { run, name });

export function socketAddress(path, params) {
  const url = new URL(address(path, params), document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  url.hash = "";
  return url.href;
}
