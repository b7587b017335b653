// The address of a view: #/name?key=value&key=value. Everything that a view shows is in it.

let listener = () => {};

export function current() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { name: path || "runs", params: new URLSearchParams(query) };
}

export function href(name, params = {}) {
  const query = params instanceof URLSearchParams ? params : new URLSearchParams();
  if (!(params instanceof URLSearchParams)) {
    for (const [key, value] of Object.entries(params)) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== null && each !== undefined && each !== "") query.append(key, each);
      }
    }
  }
  // Slashes and colons are allowed in a fragment and read better than %2F.
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%3A", ":");
  return `#/${name}${text ? `?${text}` : ""}`;
}

export function go(name, params) {
  location.hash = href(name, params);
}

/** The address of this view with other parameters: a list of values repeats the key. */
export function changed(changes) {
  const { name, params } = current();
  for (const [key, value] of Object.entries(changes)) {
    params.delete(key);
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") params.append(key, each);
    }
  }
  return href(name, params);
}

/** Change parameters of this view without a new entry in the history. */
export function adjust(changes) {
  history.replaceState(null, "", changed(changes));
  listener(current());
}

export function onRoute(listen) {
  listener = listen;
  addEventListener("hashchange", () => listener(current()));
  listener(current());
}
