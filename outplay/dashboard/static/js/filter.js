// The search of the list: words, and conditions on a run's fields and settings.
//   ppo cartpole        both words occur in the id, the algorithm, the environment or the experiment
//   lr=0.001            a setting equals a value       env:CartPole   a field contains a text
//   return>400          a number is larger or smaller  -state:failed  not

const FIELDS = {
  algo: "algorithm",
  algorithm: "algorithm",
  run: "algorithm",
  env: "env",
  environment: "env",
  state: "state",
  seed: "seed",
  experiment: "experiment",
  study: "study",
  name: "name",
  return: "return",
  steps: "timesteps",
  timesteps: "timesteps",
  iteration: "iteration",
  speed: "steps_per_s",
};

/** A predicate over runs for a query. */
export function matcher(query) {
  const tests = (query.match(/(?:[^\s"]+|"[^"]*")+/g) ?? []).map(test);
  return (run) => tests.every((each) => each(run));
}

function test(term) {
  const isNegated = term.length > 1 && term.startsWith("-");
  const text = isNegated ? term.slice(1) : term;
  const found = /^([\w./-]+?)(>=|<=|!=|=|:|>|<)(.*)$/.exec(text);
  const check = found ? condition(found[1], found[2], found[3].replaceAll('"', "")) : words(text.replaceAll('"', ""));
  return isNegated ? (run) => !check(run) : check;
}

function words(text) {
  const wanted = text.toLowerCase();
  return (run) =>
    [run.id, run.algorithm, run.env, run.experiment, run.state].some((each) => String(each ?? "").toLowerCase().includes(wanted));
}

function condition(key, operator, wanted) {
  return (run) => {
    const value = lookup(run, key.toLowerCase());
    if (value === undefined) return operator === "!=";
    if (operator === ":") return asText(value).toLowerCase().includes(wanted.toLowerCase());
    const isNumber = wanted !== "" && typeof value === "number" && !Number.isNaN(Number(wanted));
    const [left, right] = isNumber ? [value, Number(wanted)] : [asText(value).toLowerCase(), wanted.toLowerCase()];
    if (operator === "=") return left === right;
    if (operator === "!=") return left !== right;
    if (!isNumber) return false;
    return { ">": left > right, "<": left < right, ">=": left >= right, "<=": left <= right }[operator];
  };
}

/** A field of the run, or a setting by its full name or its last part. */
function lookup(run, key) {
  if (FIELDS[key] && run[FIELDS[key]] !== undefined && run[FIELDS[key]] !== null) return run[FIELDS[key]];
  for (const [name, value] of Object.entries(run.settings ?? {})) {
    const lower = name.toLowerCase();
    if (lower === key || lower.endsWith(`/${key}`) || lower.endsWith(`.${key}`)) return value;
  }
  return undefined;
}

const asText = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : String(value));
