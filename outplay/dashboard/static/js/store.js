// What the server has said so far: all runs and studies, kept up to date by server-sent events.

import { get } from "./api.js";

const listeners = new Map();

export const store = {
  runs: new Map(),
  studies: new Map(),
  machine: null,
  version: "",
  results: "",
  canControl: false,
  isLoaded: false,
  connection: "starting", // starting, live, lost, denied
  problem: "", // why it is lost or denied
};

/** Call `listener` on "runs" (with the set of changed ids), "studies", "machine" or "connection". Returns a remover. */
export function on(event, listener) {
  if (!listeners.has(event)) listeners.set(event, new Set());
  listeners.get(event).add(listener);
  return () => listeners.get(event).delete(listener);
}

/** Call `listener` when the page is seen again after it was hidden. Returns a remover. */
export function onVisible(listener) {
  const check = () => document.hidden || listener();
  document.addEventListener("visibilitychange", check);
  return () => document.removeEventListener("visibilitychange", check);
}

function emit(event, detail) {
  for (const listener of [...(listeners.get(event) ?? [])]) listener(detail);
}

function setConnection(state, problem = "") {
  if (store.connection === state && store.problem === problem) return;
  store.connection = state;
  store.problem = problem;
  emit("connection");
}

let source = null;
let wait = 500;

/** Load everything once, then follow the changes. After a lost connection this is done again. */
export async function connect() {
  try {
    const overview = await get("overview");
    take(overview);
    follow(overview.at);
  } catch (error) {
    const isDenied = error.status === 401 || error.status === 403;
    setConnection(isDenied ? "denied" : "lost", error.message);
    if (!isDenied) retry();
  }
}

function retry() {
  setTimeout(connect, wait);
  wait = Math.min(wait * 2, 10_000);
}

function take(overview) {
  const before = new Map(store.runs);
  store.runs = new Map(overview.runs.map((run) => [run.id, run]));
  store.studies = new Map(overview.studies.map((study) => [study.id, study]));
  Object.assign(store, {
    machine: overview.machine,
    version: overview.version,
    results: overview.results,
    canControl: overview.can_control,
    isLoaded: true,
  });
  const changed = new Set([...before.keys(), ...store.runs.keys()]);
  for (const [id, run] of store.runs) {
    if (JSON.stringify(before.get(id)) === JSON.stringify(run)) changed.delete(id);
  }
  emit("runs", changed);
  emit("studies");
  emit("machine");
}

/** Follow the changes since the overview. */
function follow(since) {
  source?.close();
  source = new EventSource(`api/events?since=${encodeURIComponent(since ?? "")}`);
  source.addEventListener("open", () => {
    wait = 500;
    setConnection("live");
  });
  source.addEventListener("changes", (event) => merge(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    // The browser would reconnect by itself, but would miss what changed meanwhile.
    source.close();
    setConnection("lost", "The connection to the server was lost.");
    retry();
  });
}

function merge(changes) {
  const ids = new Set(changes.removed ?? []);
  for (const id of ids) store.runs.delete(id);
  for (const run of changes.runs ?? []) {
    store.runs.set(run.id, run);
    ids.add(run.id);
  }
  for (const study of changes.studies ?? []) store.studies.set(study.id, study);
  for (const id of changes.removed ?? []) store.studies.delete(id);
  if (changes.machine) {
    store.machine = changes.machine;
    emit("machine");
  }
  if (ids.size) emit("runs", ids);
  if (changes.studies?.length) emit("studies", new Set(changes.studies.map((study) => study.id)));
}
