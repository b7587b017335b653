"""Imports point one way: what each part of the package may import of the others, as docs/architecture.md has it.

Imports inside functions and imports for type checkers count too. What is listed as allowed includes what is inside it:
`runs` allows `runs.experiments`. A rule for a module (`runs.checkpoint`) replaces that of its package.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import outplay

ROOT = Path(outplay.__file__).parent

# Used everywhere: they import each other, and nothing else.
BASICS = (
    "errors",
    "arguments",
    "streams",
    "spaces",
    "masks",
    "sequences",
    "config",
    "experiment",
    "groups",
    "conditions",
    "settings",
    "metrics",
    "schema",
    "parsing",
    "memory",
    "machine",
    "cuda",
    "files",
    "registry",
    "imports",
    "synonyms",
    "formatting",
    "live",
    "messages",
    "deduplicate",
)
# The public engine: its functions, its protocol, its handles. What starts, schedules or serialises is behind them.
ENGINE = ("engine.api", "engine.base", "engine.remote")
# What a user's program sees.
ABOVE = (
    "",
    "errors",
    "streams",
    "registry",
    "machine",
    "cuda",
    "metrics",
    "formatting",
    "live",
    "messages",
    "curves",
    "runs",
    "engine.api",
)

BELOW_ALGORITHMS = (
    *("", *BASICS, "fragments", "policies", "envs"),
    *("learning", "collect", "replay", "data", "preprocessors", "cudagraphs", "runs.checkpoint", "runs.results"),
)

ALLOWED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(BASICS, BASICS),
    "registry": ("errors", "algorithms"),  # it names the algorithms for type checkers
    "fragments": BASICS,
    "cudagraphs": BASICS,
    "data": (*BASICS, "fragments"),
    "engine": ("", "engine", "errors", "memory", "machine"),
    "util": ("errors", "engine"),
    "envs": (*BASICS, "fragments"),
    "policies": (*BASICS, "cudagraphs"),
    "replay": (*BASICS, *ENGINE, "fragments"),
    "learning": (*BASICS, "fragments", "policies", "replay", "data", "cudagraphs"),
    "learning.mirrors": (*BASICS, *ENGINE, "learning", "policies"),
    "collect": (*BASICS, *ENGINE, "fragments", "policies", "envs"),
    "export": ("", *BASICS, "policies"),
    "algorithms": BELOW_ALGORITHMS,
    # A trainer made in Python can have a Run, which is made of the trainer. So one module of the algorithms needs Runs;
    # it is imported when it is used. `Algorithm` itself names two classes for type checkers, and exports its policy.
    "algorithms.recording": ("algorithms", "errors", "runs.run", "runs.callbacks", "runs.progress"),
    "algorithms.algorithm": (*BELOW_ALGORITHMS, "algorithms", "export", "runs.run", "runs.callbacks"),
    "curves": ("errors", "streams"),  # numpy alone: the dashboard draws without torch
    "runs": ("", *BASICS, "envs", "collect", "export", "algorithms"),
    "runs.results": BASICS,
    "runs.checkpoint": (*BASICS, "runs.results"),
    "cli": (*ABOVE, "conditions", "tune", "export", "serve", "sharing", "plotting", "dashboard"),
    # A server checks what its clients send, so it knows the spaces; it has the Policy from a saved one of `runs`.
    "serve": (*ABOVE, "spaces", "masks", "sequences", "parsing", "web"),
    "sharing": (*ABOVE, "files", "plotting.svg"),
    "tune": (*ABOVE, "streams", "files", "parsing", "conditions", "plotting.svg"),
    "plotting": (*ABOVE, "conditions", "files", "tune"),
    "plotting.svg": (),  # charts of all pages: those of studies, of runs, and model cards
    "preprocessors": ("", *BASICS, "engine.api"),
    "train": ("", *BASICS, "engine.api", "tune", "data", "preprocessors"),
    "web": ("errors",),  # what the servers share
    # It reads run folders through RunFolder. No torch: only the player process, which uses the public API, has it.
    "dashboard": (*ABOVE, "conditions", "config", "experiment", "files", "parsing", "curves", "tune", "web"),
    "testing": ("", *BASICS, *ENGINE, "data", "envs", "policies", "learning", "collect", "algorithms", "runs", "tune"),
    "": ("", *BASICS, "engine", "util", "envs", "export", "algorithms", "runs"),
    "__main__": ("cli",),
    "mypy": (),  # a plugin of mypy: names only
}
# The command line, tune and the dashboard read and write a run through Run and RunFolder alone.
FORBIDDEN = {"cli": ("runs.checkpoint", "runs.sinks")}
FORBIDDEN["tune"] = FORBIDDEN["dashboard"] = FORBIDDEN["serve"] = FORBIDDEN["sharing"] = FORBIDDEN["cli"]
FORBIDDEN["plotting"] = FORBIDDEN["cli"]
# An engine knows nothing of the others.
FORBIDDEN["engine.inline"] = ("engine.process", "engine.ray")
FORBIDDEN["engine.process"] = ("engine.inline", "engine.ray")
FORBIDDEN["engine.ray"] = ("engine.inline", "engine.process")


def module_name(path: Path) -> str:
    """ "engine.ray.start"; the package itself is ""."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(path: Path) -> set[str]:
    """The full names of all modules that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner.removeprefix("outplay.") in MODULES else str(node.module))
    return found


def own(name: str) -> str | None:
    """The name inside this package; None for a module of another one."""
    first, _, rest = name.partition(".")
    return rest if first == "outplay" else None


def is_in(module: str, package: str) -> bool:
    return module == package or (package != "" and module.startswith(package + "."))


def rule(module: str) -> str:
    """The key of ALLOWED that a module falls under: the most special one."""
    return max((key for key in ALLOWED if is_in(module, key)), key=len)


def may_import(module: str, imported: str) -> bool:
    inside = is_in(imported, rule(module)) and rule(module) != ""
    allowed = inside or any(is_in(imported, package) for package in ALLOWED[rule(module)])
    refused = [package for key, packages in FORBIDDEN.items() if is_in(module, key) for package in packages]
    return allowed and not any(is_in(imported, package) for package in refused)


def test_imports_point_one_way() -> None:
    broken = {
        (module, imported)
        for module, path in MODULES.items()
        for imported in map(own, imports(path))
        if imported is not None and not may_import(module, imported)
    }
    assert sorted(broken) == [], "these imports are not allowed: see ALLOWED"


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("ray", "engine.ray"),
        ("pytest", "testing"),
        ("typer", "cli"),
        ("pyarrow", "data.arrow"),
        ("onnxruntime", "export"),
    ],
)
def test_some_libraries_are_imported_in_one_place_only(library: str, home: str) -> None:
    importing = {
        module for module, path in MODULES.items() if any(name.split(".")[0] == library for name in imports(path))
    }
    assert importing
    assert {module for module in importing if not is_in(module, home)} == set()


def test_every_module_falls_under_a_rule() -> None:
    assert {module for module in MODULES if rule(module) == ""} == {""}


def test_the_rules_have_no_circle() -> None:
    """Apart from the basics, which are one layer, and the registry's names for type checkers."""
    left = {key: {rule(part) for part in parts} - {key, *BASICS} for key, parts in ALLOWED.items() if key not in BASICS}
    left = {key: {part for part in parts if part != ""} for key, parts in left.items()}
    while left:
        free = [key for key, parts in left.items() if not parts & set(left)]
        assert free, f"these import each other: {sorted(left)}"
        for key in free:
            del left[key]


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("algorithms.ppo", "engine.process.driver"),
        ("learning.learner", "engine.api"),
        ("policies.policy", "envs"),
        ("envs.group", "collect.worker"),
        ("algorithms.ppo", "runs.run"),
        ("algorithms.setup", "runs.experiments"),
        ("algorithms.algorithm", "runs.folder"),
        ("runs.checkpoint", "algorithms"),
        ("cli.train", "engine.process"),
        ("cli.train", "runs.sinks"),
        ("tune.study", "algorithms"),
        ("serve.source", "policies.policy"),
        ("serve.source", "runs.checkpoint"),
        ("runs.bundles", "sharing.card"),
        ("engine.ray.engine", "engine.process.hub"),
        ("engine.api", "algorithms"),
        ("spaces", "envs"),
        ("runs.run", "testing.algorithm"),
        ("policies.policy", "export"),
        ("export.module", "algorithms"),
        ("curves.aggregation", "metrics"),
        ("plotting.svg", "tune.text"),
        ("plotting.facts", "runs.checkpoint"),
        ("web.listening", "serve.app"),
        ("dashboard.app", "algorithms"),
        ("dashboard.details", "runs.checkpoint"),
        ("runs.folder", "dashboard.entries"),
    ],
)
def test_what_breaks_a_rule_is_noticed(module: str, imported: str) -> None:
    assert not may_import(module, imported)
